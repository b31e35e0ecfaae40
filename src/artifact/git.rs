//! Fetches repositories with the system's `git`.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Mode, OFlags};
use url::Url;

use super::talk::{Place, failed};
use super::{FetchError, Request};
use crate::spec::{Getter, Order as _, percent_decoded};
use crate::sys::process;

/// Where distributions install git. Not searched for in PATH.
const PROGRAMS: [&str; 3] = ["/usr/bin/git", "/usr/local/bin/git", "/bin/git"];
/// Most bytes of git's messages that are reported.
const WORDS: u64 = 2048;
/// Settings that always apply: https and ssh only, no hooks, no submodules, no credential helpers.
const SETTINGS: [&str; 9] = [
    "protocol.allow=never",
    "protocol.https.allow=always",
    "protocol.ssh.allow=always",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "credential.helper=",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "advice.detachedHead=false",
];

/// Fetches into `repository` below the staging directory.
pub(super) fn fetch(request: &Request, place: &Place) -> Result<(), FetchError> {
    let Getter::Git { url, reference, depth, ssh_key } = &request.source.getter else {
        return Err(FetchError::lasting("not a git source"));
    };
    let program = PROGRAMS.into_iter().map(Path::new).find(|path| path.exists());
    let program = program.ok_or_else(|| FetchError::lasting("git is not installed; install it (apt install git)"))?;
    // Entered through its descriptor, so that it can be reached whatever the permissions of its parents.
    rustix::process::fchdir(&place.root).map_err(|e| failed("enter the staging directory")(e.into()))?;
    rustix::fs::mkdirat(&place.root, "home", Mode::from_raw_mode(0o700))
        .map_err(|e| failed("make a home")(e.into()))?;
    let mut git = Git { program, environment: environment(request, place)?, settings: Vec::new(), secrets: Vec::new() };
    let url = &git.without_secrets(url, place)?;
    if let Some(key) = ssh_key {
        let decoded = STANDARD
            .decode(key.trim())
            .map_err(|error| FetchError::lasting(format!("sshkey is not base64: {error}")))?;
        write(place, "home/key", &decoded)?;
        git.ssh(place, request, true)?;
    } else {
        git.ssh(place, request, false)?;
    }
    let depth_argument = depth.map(|depth| format!("--depth={depth}"));
    let is_commit = |text: &str| matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut clone = vec!["clone", "--quiet", "--template=", "--no-recurse-submodules"];
    clone.extend(depth_argument.as_deref());
    match (reference.as_deref(), depth_argument.as_deref()) {
        (Some(commit), Some(depth)) if is_commit(commit) => {
            git.run(&["init", "--quiet", "--template=", "repository"])?;
            git.run(&["-C", "repository", "remote", "add", "origin", url])?;
            git.run(&["-C", "repository", "fetch", "--quiet", depth, "origin", commit])?;
            git.run(&["-C", "repository", "checkout", "--quiet", "FETCH_HEAD"])
        }
        (Some(reference), Some(_)) => {
            clone.extend(["--branch", reference, "--", url, "repository"]);
            git.run(&clone)
        }
        (Some(reference), None) => {
            clone.extend(["--no-checkout", "--", url, "repository"]);
            git.run(&clone)?;
            git.run(&["-C", "repository", "checkout", "--quiet", reference, "--"])
        }
        (None, _) => {
            clone.extend(["--", url, "repository"]);
            git.run(&clone)
        }
    }
}

fn write(place: &Place, name: &str, bytes: &[u8]) -> Result<(), FetchError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = place.root.open_beneath(Path::new(name), flags, Mode::from_raw_mode(0o600));
    let mut file = std::fs::File::from(file.map_err(failed("write git's settings"))?);
    io::Write::write_all(&mut file, bytes).map_err(failed("write git's settings"))
}

fn environment(request: &Request, place: &Place) -> Result<Vec<(&'static str, String)>, FetchError> {
    let home = place.path.join("home");
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut environment = vec![
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("LC_ALL", "C".to_owned()),
        ("HOME", text(home.clone())),
        ("TMPDIR", text(place.path.clone())),
        ("GIT_CONFIG_NOSYSTEM", "1".to_owned()),
        ("GIT_CONFIG_SYSTEM", "/dev/null".to_owned()),
        ("GIT_CONFIG_GLOBAL", "/dev/null".to_owned()),
        ("GIT_ATTR_NOSYSTEM", "1".to_owned()),
        ("GIT_TERMINAL_PROMPT", "0".to_owned()),
        ("GIT_ASKPASS", "/bin/false".to_owned()),
        ("SSH_ASKPASS", "/bin/false".to_owned()),
        ("GIT_LFS_SKIP_SMUDGE", "1".to_owned()),
        ("GIT_CEILING_DIRECTORIES", text(place.path.clone())),
    ];
    if request.insecure {
        environment.push(("GIT_SSL_NO_VERIFY", "1".to_owned()));
    } else if request.own_certificates {
        write(place, "home/authorities.pem", request.certificates.as_bytes())?;
        environment.push(("GIT_SSL_CAINFO", text(home.join("authorities.pem"))));
    }
    Ok(environment)
}

struct Git<'a> {
    program: &'a Path,
    environment: Vec<(&'static str, String)>,
    /// Settings in addition to [`SETTINGS`].
    settings: Vec<String>,
    /// Secrets that are removed from git's messages.
    secrets: Vec<String>,
}

/// Quotes a text as one word for the shell that git runs commands with.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl Git<'_> {
    /// The URL for command lines, which every user of the machine can read, and for the repository's configuration: without user
    /// and
    /// password. git asks for these when it needs them, and gets them from a file.
    fn without_secrets(&mut self, url: &str, place: &Place) -> Result<String, FetchError> {
        let wrong = |error: url::ParseError| FetchError::lasting(format!("the repository's URL: {error}"));
        let mut url = Url::parse(url).map_err(wrong)?;
        // With ssh, the user is part of the address, and a password has been refused.
        if url.scheme() != "https" || url.username().is_empty() && url.password().is_none() {
            return Ok(url.into());
        }
        let (user, password) = (url.username().to_owned(), url.password().unwrap_or_default().to_owned());
        let no_host = || FetchError::lasting("the repository's URL has no host");
        let host = url.host_str().ok_or_else(no_host)?;
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        write(place, "home/credentials", format!("https://{user}:{password}@{host}{port}\n").as_bytes())?;
        let file = place.path.join("home/credentials");
        self.settings.push(format!("credential.helper=store --file={}", quoted(&file.to_string_lossy())));
        for text in [user, password] {
            self.secrets.extend(percent_decoded(&text));
            self.secrets.push(text);
        }
        // A shorter text is a user name rather than a token, and occurs in too many words.
        self.secrets.retain(|secret| secret.len() > 3);
        // The longest first: one may be part of another.
        self.secrets.order_by_key(|secret| std::cmp::Reverse(secret.len()));
        // Fails only for a URL without a host, which has no user and password.
        url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| no_host())?;
        Ok(url.into())
    }

    /// The ssh command for git: without any user configuration, agent or prompts.
    fn ssh(&mut self, place: &Place, request: &Request, has_key: bool) -> Result<(), FetchError> {
        write(place, "home/known_hosts", request.known_hosts.as_bytes())?;
        // ssh expands names that begin with a percent sign, and a space ends a value unless it is in ssh's own quotes.
        let in_ssh = |name: &str| place.path.join(name).to_string_lossy().replace('%', "%%");
        let known_hosts = quoted(&format!("UserKnownHostsFile=\"{}\"", in_ssh("home/known_hosts")));
        let key = quoted(&in_ssh("home/key"));
        let check = if request.insecure { "no" } else { "yes" };
        let key = if has_key { format!("-i {key} -o IdentitiesOnly=yes ") } else { String::new() };
        let command = format!(
            "ssh -F /dev/null -o BatchMode=yes -o IdentityAgent=none -o StrictHostKeyChecking={check} -o \
             {known_hosts} -o ConnectTimeout=30 {key}"
        );
        self.environment.push(("GIT_SSH_COMMAND", command));
        Ok(())
    }

    fn run(&self, arguments: &[&str]) -> Result<(), FetchError> {
        let mut command = Command::new(self.program);
        for setting in SETTINGS.into_iter().chain(self.settings.iter().map(String::as_str)) {
            command.args(["-c", setting]);
        }
        command.args(arguments).env_clear().envs(self.environment.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        process::die_with_parent(&mut command);
        let mut child = command.spawn().map_err(failed("start git"))?;
        let (mut said, mut stderr) = (Vec::new(), child.stderr.take());
        if let Some(stderr) = &mut stderr {
            stderr.take(WORDS).read_to_end(&mut said).map_err(failed("hear git"))?;
            io::copy(stderr, &mut io::sink()).map_err(failed("hear git"))?;
        }
        let status = child.wait().map_err(failed("wait for git"))?;
        if status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let hint = if said.contains("Host key verification failed") {
            "; add the host's key to ~/.ssh/known_hosts or /etc/ssh/ssh_known_hosts (ssh-keyscan HOST), or set insecure = true"
        } else if said.contains("could not read Username") || said.contains("could not read Password") {
            "; the repository does not exist or wants a password: put a token into the URL (https://USER:TOKEN@HOST/PATH), or use \
             ssh with sshkey"
        } else if said.contains("Authentication failed") {
            "; the server refuses the user, password or token of the URL"
        } else if said.contains("pathspec") || said.contains("invalid reference") || said.contains("Remote branch") {
            "; ref names a branch, a tag or a commit"
        } else {
            ""
        };
        let verb = arguments.iter().find(|word| !matches!(**word, "-C" | "repository")).copied().unwrap_or_default();
        let told = self.secrets.iter().fold(lines.join(": "), |told, secret| told.replace(secret, "..."));
        Err(FetchError::passing(format!("git {verb}: {told}{hint}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::Limits;
    use crate::spec::{ArtifactMode, Source};
    use crate::sys::path::Root;

    /// The arguments that the shell passes on from git's command, for an unusual path of the data directory.
    #[test]
    fn j5_ssh_is_told_of_files_below_any_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it's $HOME \\ 100%");
        std::fs::create_dir_all(path.join("home")).unwrap();
        let place = Place { root: Root::open(&path).unwrap(), path: path.clone() };
        let request = Request {
            source: Source::parse("git@h:a/b", &crate::spec::collections::BTreeMap::new()).unwrap(),
            mode: ArtifactMode::Any,
            headers: crate::spec::collections::BTreeMap::new(),
            insecure: false,
            limits: Limits::DEFAULT,
            certificates: String::new(),
            own_certificates: false,
            known_hosts: String::new(),
        };
        let (program, environment) = (Path::new("git"), Vec::new());
        let mut git = Git { program, environment, settings: Vec::new(), secrets: Vec::new() };
        git.ssh(&place, &request, true).unwrap();
        let (_, command) = git.environment.pop().unwrap();
        let shown = format!("printf '%s\\n' {}", command.strip_prefix("ssh ").unwrap());
        let out = Command::new("sh").args(["-c", &shown]).output().unwrap();
        let words: Vec<String> = String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
        let hosts = format!("UserKnownHostsFile=\"{}/home/known_hosts\"", path.display()).replace('%', "%%");
        assert!(words.contains(&hosts), "{words:?}");
        assert!(words.contains(&format!("{}/home/key", path.display()).replace('%', "%%")), "{words:?}");
    }
}
