//! Where an artifact comes from: what the text of a `source` and its `options` mean.

use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;
use url::form_urlencoded::byte_serialize;

use super::ArtifactMode;
use crate::spec::collections::BTreeMap;

/// What fetches an artifact. Its `Debug` shows no secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Getter {
    /// A file or directory of this machine: its path, relative to the job file's directory or absolute.
    File(String),
    /// A URL of scheme `http` or `https`.
    Http(String),
    /// A repository, fetched by the system's `git`.
    Git {
        /// A URL of scheme `https` or `ssh`.
        url: String,
        /// Branch, tag or commit; the repository's default branch otherwise.
        reference: Option<String>,
        /// Commits that are fetched; `None` for all.
        depth: Option<u32>,
        /// A private key for ssh, in base64.
        ssh_key: Option<String>,
    },
    /// An object of a bucket.
    S3 {
        /// The URL before the bucket, as `https://s3.amazonaws.com`.
        endpoint: String,
        /// Its name stands in the path and not in the host.
        path_style: bool,
        /// The bucket.
        bucket: String,
        /// The object.
        key: String,
        /// As `us-east-1`.
        region: String,
        /// Id and secret of an access key, and the token of a temporary one; `None` asks without a signature.
        credentials: Option<(String, String, Option<String>)>,
        /// Of the object; the latest otherwise.
        version: Option<String>,
    },
}

impl fmt::Debug for Getter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Getter::File(path) => f.debug_tuple("File").field(path).finish(),
            Getter::Http(url) => f.debug_tuple("Http").field(&shown(url)).finish(),
            Getter::Git { url, reference, .. } => {
                let shown = shown(url);
                f.debug_struct("Git").field("url", &shown).field("reference", reference).finish_non_exhaustive()
            }
            Getter::S3 { endpoint, bucket, key, .. } => {
                let endpoint = shown(endpoint);
                let mut told = f.debug_struct("S3");
                told.field("endpoint", &endpoint).field("bucket", bucket).field("key", key).finish_non_exhaustive()
            }
        }
    }
}

/// How the fetched file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names that sources use")]
pub enum ArchiveKind {
    Tar,
    TarGz,
    TarBz2,
    TarXz,
    TarZst,
    Zip,
    Gz,
    Bz2,
    Xz,
    Zst,
}

/// Endings and values of `archive`.
const ARCHIVES: [(&str, ArchiveKind); 14] = [
    ("tar", ArchiveKind::Tar),
    ("tar.gz", ArchiveKind::TarGz),
    ("tgz", ArchiveKind::TarGz),
    ("tar.bz2", ArchiveKind::TarBz2),
    ("tbz2", ArchiveKind::TarBz2),
    ("tar.xz", ArchiveKind::TarXz),
    ("txz", ArchiveKind::TarXz),
    ("tar.zst", ArchiveKind::TarZst),
    ("tzst", ArchiveKind::TarZst),
    ("zip", ArchiveKind::Zip),
    ("gz", ArchiveKind::Gz),
    ("bz2", ArchiveKind::Bz2),
    ("xz", ArchiveKind::Xz),
    ("zst", ArchiveKind::Zst),
];

impl ArchiveKind {
    /// By the name of a file.
    #[must_use]
    pub fn of_file(name: &str) -> Option<ArchiveKind> {
        let fits = |ending: &str| name.strip_suffix(ending).is_some_and(|rest| rest.ends_with('.'));
        ARCHIVES.iter().filter(|(ending, _)| fits(ending)).max_by_key(|(ending, _)| ending.len()).map(|(_, kind)| *kind)
    }

    /// Whether it holds several files.
    #[must_use]
    pub const fn is_tree(self) -> bool {
        !matches!(self, ArchiveKind::Gz | ArchiveKind::Bz2 | ArchiveKind::Xz | ArchiveKind::Zst)
    }
}

/// Algorithm of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names that sources use")]
pub enum Digest {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl Digest {
    const ALL: [Digest; 4] = [Digest::Md5, Digest::Sha1, Digest::Sha256, Digest::Sha512];

    /// As in `sha256:...`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Digest::Md5 => "md5",
            Digest::Sha1 => "sha1",
            Digest::Sha256 => "sha256",
            Digest::Sha512 => "sha512",
        }
    }

    /// Length of its value in hexadecimal digits.
    #[must_use]
    pub const fn digits(self) -> usize {
        match self {
            Digest::Md5 => 32,
            Digest::Sha1 => 40,
            Digest::Sha256 => 64,
            Digest::Sha512 => 128,
        }
    }

    /// The one whose values are as long as this text, if it is hexadecimal.
    #[must_use]
    pub fn of_value(text: &str) -> Option<Digest> {
        let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        Digest::ALL.into_iter().find(|digest| hexadecimal && digest.digits() == text.len())
    }
}

/// What the fetched file must be. Its `Debug` shows no secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Checksum {
    /// It has this value, in lower case.
    Value(Digest, String),
    /// It has the value that the file at this URL (http or https) gives for its name.
    File(String),
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Checksum::Value(digest, value) => write!(f, "{}:{value}", digest.name()),
            Checksum::File(url) => write!(f, "file:{}", shown(url)),
        }
    }
}

impl Checksum {
    /// `sha256:HEX`, `HEX`, or `file:URL`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Checksum, String> {
        let (name, value) = text.split_once(':').unwrap_or(("", text));
        if name == "file" {
            let remote = value.starts_with("https://") || value.starts_with("http://");
            let wrong = || {
                format!("checksum \"file:{value}\" names no http or https URL; write checksum = \"file:https://...\"")
            };
            return remote.then(|| Checksum::File(value.to_owned())).ok_or_else(wrong);
        }
        let digest =
            match name {
                "" => Digest::of_value(value),
                _ => Some(Digest::ALL.into_iter().find(|digest| digest.name() == name).ok_or_else(|| {
                    format!("unknown checksum type \"{name}\"; use md5, sha1, sha256, sha512 or file")
                })?),
            };
        match digest {
            Some(digest) if Digest::of_value(value) == Some(digest) => {
                Ok(Checksum::Value(digest, value.to_ascii_lowercase()))
            }
            Some(digest) => Err(format!(
                "the checksum {name}:{value} has {} digits; {name} has {} hexadecimal ones",
                value.len(),
                digest.digits()
            )),
            None => Err(format!("the checksum {value:?} is of no known type; write sha256:HEX")),
        }
    }
}

/// What is fetched, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// From where.
    pub getter: Getter,
    /// The part of the archive or repository that is wanted; may hold `*` and `?`.
    pub subdir: Option<String>,
    /// It is unpacked. Not for [`Getter::Git`].
    pub archive: Option<ArchiveKind>,
    /// See [`Checksum`].
    pub checksum: Option<Checksum>,
    /// The name of the file in the destination.
    pub name: String,
}

/// Parameters of a source that are no secrets. Whatever else stands there may be the key of a signed URL, by any name.
const HARMLESS: [&str; 7] = ["archive", "filename", "ref", "depth", "region", "version", "versionId"];

/// The text of a source for messages: without passwords, tokens, and values of parameters that are not known to be harmless.
#[must_use]
pub fn shown(source: &str) -> String {
    let (before, query) = source.split_once('?').map_or((source, None), |(before, query)| (before, Some(query)));
    let mut text = before.to_owned();
    if let Some((scheme, rest)) = before.split_once("://") {
        let rest = rest.split('#').next().unwrap_or(rest);
        let end = rest.find(['/', '\\']).unwrap_or(rest.len());
        text = format!("{scheme}://{}{}", shown_authority(scheme, &rest[..end]), &rest[end..]);
    }
    if let Some(query) = query {
        text = format!("{text}?{}", query.split('&').map(shown_parameter).collect::<Vec<_>>().join("&"));
    }
    text
}

fn shown_authority(scheme: &str, authority: &str) -> String {
    match authority.rsplit_once('@') {
        // The user of ssh is part of the address, as in git@host. Of everything else he may be a token.
        Some((user, host)) if scheme.rsplit("::").next() == Some("ssh") => match user.split_once(':') {
            Some((name, _)) => format!("{name}:...@{host}"),
            None => format!("{user}@{host}"),
        },
        Some((_, host)) => format!("...@{host}"),
        // A password with a slash or a question mark: its beginning is taken for a port.
        None if authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.ends_with(']') && port.parse::<u16>().is_err()) =>
        {
            "...".to_owned()
        }
        None => authority.to_owned(),
    }
}

fn shown_parameter(pair: &str) -> String {
    match pair.split_once('=') {
        Some((key, _)) if HARMLESS.contains(&key) => pair.to_owned(),
        Some(("checksum", value)) if !value.contains(['%', '+']) => match value.strip_prefix("file:") {
            Some(url) => format!("checksum=file:{}", shown(url)),
            None => pair.to_owned(),
        },
        Some((key, _)) => format!("{key}=..."),
        None => "...".to_owned(),
    }
}

impl Source {
    /// What `source` means together with its `options`, which are parameters of it that stand elsewhere.
    ///
    /// # Errors
    /// What is not known or not done, and the fix.
    pub fn parse(source: &str, options: &BTreeMap<String, String>) -> Result<Source, String> {
        if source.is_empty() {
            return Err("it must not be empty; name a local path or a URL".to_owned());
        }
        if source.contains('\0') {
            return Err("it holds a NUL byte; remove it".to_owned());
        }
        let (forced, rest) = forced(source);
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parameters: Vec<(String, String)> =
            url::form_urlencoded::parse(query.as_bytes()).map(|(k, v)| (k.into_owned(), v.into_owned())).collect();
        parameters.extend(options.iter().map(|(key, value)| (key.clone(), value.clone())));
        let (detected, address) = detect(forced, address);
        let (address, subdir) = split_subdir(&address);
        let mut parameters = Parameters(parameters);
        let archive = parameters.take("archive");
        let checksum = parameters.take("checksum").map(|text| Checksum::parse(&text)).transpose()?;
        let filename = parameters.take("filename");
        let getter = getter(detected.as_deref(), &address, &mut parameters)?;
        let last = last_name(&getter);
        let is_git = matches!(getter, Getter::Git { .. });
        let archive = match archive.as_deref() {
            _ if is_git => None,
            None | Some("") => ArchiveKind::of_file(&last),
            Some("true" | "1" | "t" | "T" | "TRUE" | "True") => ArchiveKind::of_file(&last),
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => None,
            Some(name) => Some(ARCHIVES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or_else(
                || format!("unknown archive type \"{name}\"; use false, tar, tar.gz, tar.bz2, tar.xz, tar.zst, zip, gz, bz2, xz or zst"),
            )?),
        };
        if is_git && checksum.is_some() {
            return Err(
                "a checksum is for one file, and a git repository is a directory; name a commit with ref".to_owned()
            );
        }
        let name = filename.unwrap_or(last);
        if name.contains('/') || matches!(name.as_str(), "." | "..") {
            return Err(format!("filename \"{name}\" is not a plain file name; name the directory with destination"));
        }
        let subdir = subdir.filter(|dir| !dir.is_empty());
        if let Some(dir) = subdir.as_deref().filter(|dir| dir.split('/').any(|part| part == "..")) {
            return Err(format!("the part \"//{dir}\" leads out of what is fetched; remove the \"..\""));
        }
        if subdir.is_some() && archive.is_none() && !is_git {
            return Err(
                "\"//\" names a part of an archive or a repository, and this is neither; write one slash".to_owned()
            );
        }
        Ok(Source { getter, subdir, archive, checksum, name })
    }

    /// Whether it can be taken in this mode, as far as that is known before it is there.
    ///
    /// # Errors
    /// Why not, and the fix.
    pub fn fits(&self, mode: ArtifactMode) -> Result<(), String> {
        let is_git = matches!(self.getter, Getter::Git { .. });
        let is_file = matches!(self.getter, Getter::File(_));
        match (mode, self.archive) {
            (ArtifactMode::File, _) if is_git => {
                Err("\"file\" cannot take a git repository; use any or dir".to_owned())
            }
            (ArtifactMode::Dir, None) if !is_git && !is_file => {
                Err("\"dir\" needs an archive, and this is a single file; use any or file".to_owned())
            }
            (ArtifactMode::Any | ArtifactMode::Dir, Some(kind)) if !kind.is_tree() => Err(format!(
                "what is packed in {} is a single file; use mode = \"file\" to unpack it, or the option archive = false to \
                 keep it packed",
                self.name
            )),
            _ => Ok(()),
        }
    }

    /// Whether headers are sent when it is fetched.
    #[must_use]
    pub fn takes_headers(&self) -> bool {
        matches!(self.getter, Getter::Http(_))
    }

    /// Whether fetching it needs the network.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !matches!(self.getter, Getter::File(_)) || matches!(self.checksum, Some(Checksum::File(_)))
    }
}

struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The first one with this name; it and all others of the name are gone then.
    fn take(&mut self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        self.0.retain(|(key, _)| key != name);
        found
    }

    /// Refuses what nobody has taken.
    fn nothing_left(&self, what: &str, known: &str) -> Result<(), String> {
        let Some((key, _)) = self.0.first() else { return Ok(()) };
        Err(format!("unknown option \"{key}\" of {what}; known are archive, checksum, filename{known}"))
    }
}

/// `git::https://...` is `git` and the rest.
fn forced(source: &str) -> (Option<&str>, &str) {
    match source.split_once("::") {
        Some((name, rest)) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()) => (Some(name), rest),
        _ => (None, source),
    }
}

/// Hosts whose paths are repositories, also without a scheme.
const HOSTS: [&str; 3] = ["github.com/", "gitlab.com/", "bitbucket.org/"];

/// What an address without a scheme means: the getter, if it is forced, and a URL or a path.
fn detect(forced: Option<&str>, address: &str) -> (Option<String>, String) {
    let as_it_is = (forced.map(str::to_owned), address.to_owned());
    if address.contains("://") {
        return as_it_is;
    }
    let git = |url: String| (Some("git".to_owned()), url);
    if let Some((user_host, path)) = address.split_once(':')
        && let Some((user, host)) = user_host.split_once('@')
        && ![user, host].iter().any(|part| part.is_empty() || part.contains('/'))
        && (forced == Some("git") || user == "git")
    {
        return git(format!("ssh://{user}@{host}/{}", path.trim_start_matches('/')));
    }
    if let Some(host) = HOSTS.iter().find(|host| address.starts_with(*host))
        && (forced.is_none() || forced == Some("git"))
    {
        let parts: Vec<&str> = address[host.len()..].splitn(3, '/').collect();
        if let [owner, repository, rest @ ..] = parts.as_slice() {
            let repository = repository.strip_suffix(".git").unwrap_or(repository);
            let below = rest.first().map(|rest| format!("//{}", rest.trim_start_matches('/'))).unwrap_or_default();
            return git(format!("https://{host}{owner}/{repository}.git{below}"));
        }
    }
    if forced.is_none() && address.split('/').next().is_some_and(|host| host.ends_with(".amazonaws.com")) {
        return (Some("s3".to_owned()), format!("https://{address}"));
    }
    if forced.is_none() && address.starts_with("www.googleapis.com/storage/") {
        return (Some("gcs".to_owned()), format!("https://{address}"));
    }
    as_it_is
}

/// `https://host/x.tar.gz//part` is the URL and `part`. A plain path keeps its slashes.
fn split_subdir(address: &str) -> (String, Option<String>) {
    let Some(at) = address.find("://").map(|at| at + 3) else { return (address.to_owned(), None) };
    match address[at..].split_once("//") {
        // `file:///path` has its third slash before the path.
        Some((before, below)) if !before.is_empty() => {
            (format!("{}{before}", &address[..at]), Some(below.trim_matches('/').to_owned()))
        }
        _ => (address.to_owned(), None),
    }
}

fn getter(forced: Option<&str>, address: &str, parameters: &mut Parameters) -> Result<Getter, String> {
    let scheme = address.split_once("://").map(|(scheme, _)| scheme);
    match (forced, scheme) {
        (None | Some("file"), None | Some("file")) => {
            parameters.nothing_left("a local path", "")?;
            let Some(path) = address.strip_prefix("file://") else { return Ok(Getter::File(address.to_owned())) };
            if !path.starts_with('/') {
                return Err("a file URL names an absolute path; write file:///path".to_owned());
            }
            percent_decoded(path).map(Getter::File).ok_or_else(|| "invalid % escape in the file URL".to_owned())
        }
        (None | Some("http" | "https"), Some("http" | "https")) => {
            let mut url = parsed(address)?;
            if !parameters.0.is_empty() {
                let pairs = parameters.0.iter().map(|(key, value)| {
                    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                    format!("{}={}", encoded(key), encoded(value))
                });
                url.set_query(Some(&pairs.collect::<Vec<_>>().join("&")));
            }
            // Of a URL without a path the destination is the file.
            if url.path().ends_with('/') && url.path() != "/" {
                return Err("a URL that ends with \"/\" names no file; name the file".to_owned());
            }
            Ok(Getter::Http(url.into()))
        }
        (Some("git"), _) => git(address, parameters),
        (None, Some("ssh")) => Err(format!("a URL with ssh is a repository only with git:: before it; write git::{}", shown(address))),
        (Some("s3"), Some("http" | "https")) => s3(address, parameters),
        (_, Some("s3")) => Err("s3:// is not a URL of a getter; write s3::https://s3.amazonaws.com/BUCKET/KEY".to_owned()),
        (Some("hg"), _) => Err("Mercurial repositories (hg::) are not fetched by agentbin run; fetch it before and name the local path, or the URL of an archive of it".to_owned()),
        (Some("gcs"), _) => Err("gcs:: with Google's credentials is not done by agentbin run; write https://storage.googleapis.com/BUCKET/OBJECT for a public object, or a signed URL".to_owned()),
        (Some(name), _) if !matches!(name, "http" | "https" | "file" | "s3") => {
            Err(format!("unknown getter \"{name}::\"; use file, http, https, git or s3"))
        }
        (_, Some(scheme)) => Err(format!("unknown scheme \"{scheme}://\"; use http, https, file, git:: or s3::")),
        (_, None) => Err("it is not a URL; write it with https://".to_owned()),
    }
}

fn parsed(address: &str) -> Result<Url, String> {
    let url = Url::parse(address).map_err(|error| format!("it is not a URL: {error}"))?;
    // Where a host is missing, the crate takes the first part of the path for it, as browsers do.
    if address.contains(":///") || url.host_str().is_none_or(str::is_empty) {
        Err("the URL has no host; write https://HOST/PATH".to_owned())
    } else {
        Ok(url)
    }
}

fn git(address: &str, parameters: &mut Parameters) -> Result<Getter, String> {
    let reference = parameters.take("ref").filter(|text| !text.is_empty());
    let depth = parameters.take("depth").filter(|text| !text.is_empty());
    let ssh_key = parameters.take("sshkey").filter(|text| !text.is_empty());
    parameters.nothing_left("a git repository", ", ref, depth and sshkey")?;
    let depth = depth.map(|text| {
        text.parse::<u32>().map_err(|_| format!("depth \"{text}\" is not a number of commits; use 1 or more"))
    });
    let depth = depth.transpose()?.filter(|depth| *depth > 0);
    if let Some(bad) = reference.as_deref().filter(|text| text.starts_with('-') || text.contains(char::is_control)) {
        return Err(format!("ref {bad:?} is not a branch, tag or commit; name one"));
    }
    if address.starts_with("file:") {
        return Err("git over file:// is not done; name the directory itself as a local path".to_owned());
    }
    let url = parsed(address).map_err(|error| format!("{error}; write git::https://HOST/PATH or git@HOST:PATH"))?;
    match url.scheme() {
        "https" | "ssh" => {}
        scheme => {
            return Err(format!(
                "git over {scheme}:// is not done, only https and ssh; write git::https://... or git@HOST:PATH"
            ));
        }
    }
    if ssh_key.is_some() && url.scheme() != "ssh" {
        return Err("sshkey is for git over ssh; write git@HOST:PATH, or remove sshkey".to_owned());
    }
    if url.scheme() == "ssh" && url.password().is_some() {
        return Err("ssh takes no password from a URL; remove it, and give a key with sshkey".to_owned());
    }
    // What looks like an option would be one of ssh.
    if url.host_str().is_some_and(|host| host.starts_with('-'))
        || url.username().starts_with('-')
        || url.path().starts_with("/-")
    {
        return Err("host, user or path of the repository begin with \"-\"; name a repository".to_owned());
    }
    Ok(Getter::Git { url: url.into(), reference, depth, ssh_key })
}

fn s3(address: &str, parameters: &mut Parameters) -> Result<Getter, String> {
    let mut take = |name: &str| parameters.take(name).filter(|text| !text.is_empty());
    let (id, secret, token) = (take("aws_access_key_id"), take("aws_access_key_secret"), take("aws_access_token"));
    let (region, version, profile) = (take("region"), take("version"), take("aws_profile"));
    if profile.is_some() {
        return Err("aws_profile names a file of this machine, which no download reads; give aws_access_key_id and aws_access_key_secret".to_owned());
    }
    parameters.nothing_left(
        "an s3 source",
        ", aws_access_key_id, aws_access_key_secret, aws_access_token, region and version",
    )?;
    let credentials = match (id, secret) {
        (Some(id), Some(secret)) => Some((id, secret, token)),
        (None, None) => None,
        _ => {
            return Err(
                "an s3 source needs both aws_access_key_id and aws_access_key_secret, or neither; add the other"
                    .to_owned(),
            );
        }
    };
    let url = parsed(address)?;
    let host = url.host_str().unwrap_or_default();
    let path = percent_decoded(url.path().trim_start_matches('/')).ok_or("invalid % escape in the URL")?;
    let in_path = || path.split_once('/').map(|(bucket, key)| (bucket.to_owned(), key.to_owned())).unwrap_or_default();
    let endpoint_of = |host: &str| {
        format!("{}://{host}{}", url.scheme(), url.port().map(|port| format!(":{port}")).unwrap_or_default())
    };
    let amazon = host.strip_suffix(".amazonaws.com").map(|before| before.split('.').collect::<Vec<_>>());
    let (path_style, endpoint, bucket, key, own_region) = match amazon.as_deref() {
        // s3.amazonaws.com, s3-REGION.amazonaws.com, s3.REGION.amazonaws.com
        Some([first] | ["s3", first]) => {
            let (bucket, key) = in_path();
            let region = first.strip_prefix("s3-").or((*first != "s3").then_some(*first));
            (true, endpoint_of(host), bucket, key, region.map(str::to_owned))
        }
        // BUCKET.s3.amazonaws.com, BUCKET.s3-REGION.amazonaws.com, BUCKET.s3.REGION.amazonaws.com
        Some([bucket @ .., "s3", region]) if !bucket.is_empty() => {
            let below = format!("s3.{region}.amazonaws.com");
            (false, endpoint_of(&below), bucket.join("."), path.clone(), Some((*region).to_owned()))
        }
        Some([bucket @ .., service]) if service.starts_with("s3") => {
            let below = format!("{service}.amazonaws.com");
            let region = service.strip_prefix("s3-").map(str::to_owned);
            (false, endpoint_of(&below), bucket.join("."), path.clone(), region)
        }
        _ => {
            let (bucket, key) = in_path();
            (true, endpoint_of(host), bucket, key, None)
        }
    };
    if bucket.is_empty() || key.is_empty() || key.ends_with('/') {
        return Err(
            "an s3 source names one object, not a bucket or a prefix; write s3::https://s3.amazonaws.com/BUCKET/KEY"
                .to_owned(),
        );
    }
    let region = region.or(own_region).unwrap_or_else(|| "us-east-1".to_owned());
    Ok(Getter::S3 { endpoint, path_style, bucket, key, region, credentials, version })
}

/// The last name of what is fetched.
fn last_name(getter: &Getter) -> String {
    let of_path = |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    match getter {
        Getter::File(path) => of_path(path),
        Getter::S3 { key, .. } => of_path(key),
        Getter::Http(url) | Getter::Git { url, .. } => {
            let last = Url::parse(url).map(|url| of_path(url.path())).unwrap_or_default();
            percent_decoded(&last).filter(|name| !name.contains(['/', '\0'])).unwrap_or(last)
        }
    }
}

/// A text as a part of a URL: unreserved characters (RFC 3986), and those of `stays`, stay as they are.
pub(crate) fn percent_encoded(text: &str, stays: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || stays.contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Cannot fail: it is a text in memory.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The text that stands for this one in a URL; `None` for what is no such text.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            out.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            out.push(*first);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Source, String> {
        Source::parse(text, &BTreeMap::new())
    }

    fn told(text: &str) -> String {
        match parse(text).map(|source| source.getter) {
            Ok(Getter::File(path)) => format!("file {path}"),
            Ok(Getter::Http(url)) => format!("http {url}"),
            Ok(Getter::Git { url, reference, depth, .. }) => format!("git {url} {reference:?} {depth:?}"),
            Ok(Getter::S3 { endpoint, path_style, bucket, key, region, .. }) => {
                format!("s3 {endpoint} {path_style} {bucket} {key} {region}")
            }
            Err(error) => format!("error {error}"),
        }
    }

    #[test]
    fn sources_mean_what_their_getters_say() {
        for (text, expected) in [
            ("data/x", "file data/x"),
            ("https://h", "http https://h/"),
            ("file:///a%20b", "file /a b"),
            ("file::/a/b", "file /a/b"),
            ("https://h/x.tar.gz?checksum=md5:00000000000000000000000000000000&a=b c", "http https://h/x.tar.gz?a=b+c"),
            ("http://h:81/x?archive=false", "http http://h:81/x"),
            ("github.com/a/b", "git https://github.com/a/b.git None None"),
            ("github.com/a/b.git//c?ref=v1", "git https://github.com/a/b.git Some(\"v1\") None"),
            ("git@github.com:a/b.git?depth=1", "git ssh://git@github.com/a/b.git None Some(1)"),
            ("git::me@h.test:a/b", "git ssh://me@h.test/a/b None None"),
            ("git::https://h/r.git?ref=x&depth=0", "git https://h/r.git Some(\"x\") None"),
            ("s3::https://s3.amazonaws.com/b/k/x", "s3 https://s3.amazonaws.com true b k/x us-east-1"),
            ("s3::https://s3-eu-west-1.amazonaws.com/b/k", "s3 https://s3-eu-west-1.amazonaws.com true b k eu-west-1"),
            ("s3::https://s3.eu-west-1.amazonaws.com/b/k", "s3 https://s3.eu-west-1.amazonaws.com true b k eu-west-1"),
            ("s3::https://b.s3.amazonaws.com/k", "s3 https://s3.amazonaws.com false b k us-east-1"),
            ("b.s3-eu-west-1.amazonaws.com/k", "s3 https://s3-eu-west-1.amazonaws.com false b k eu-west-1"),
            ("b.c.s3.eu-west-1.amazonaws.com/k", "s3 https://s3.eu-west-1.amazonaws.com false b.c k eu-west-1"),
            ("s3::http://127.0.0.1:9000/b/k?region=x", "s3 http://127.0.0.1:9000 true b k x"),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_known_or_not_done_is_refused_with_the_fix() {
        for (text, expected) in [
            ("", "must not be empty"),
            ("ftp://h/x", "unknown scheme \"ftp://\""),
            ("hg::https://h/x", "hg::"),
            ("gcs::https://www.googleapis.com/storage/v1/b/x", "storage.googleapis.com"),
            ("www.googleapis.com/storage/v1/b/x", "storage.googleapis.com"),
            ("svn::https://h/x", "unknown getter \"svn::\""),
            ("git::http://h/x", "git over http://"),
            ("git::git://h/x", "git over git://"),
            ("git::file:///x", "git over file://"),
            ("git::ssh://-oProxyCommand=x/y", "begin with \"-\""),
            ("git::https://h/x?ref=--upload-pack=x", "ref"),
            ("git::https://h/x?sshkey=AAAA", "sshkey is for git over ssh"),
            ("git::ssh://git:pw@h/x", "takes no password"),
            ("git::https://h/x?depht=1", "unknown option \"depht\""),
            ("git::https://h/x?depth=all", "depth \"all\""),
            ("git::https://h/x?checksum=md5:00000000000000000000000000000000", "name a commit with ref"),
            ("ssh://git@h/x", "git::"),
            ("s3://b/k", "s3::https://"),
            ("s3::https://s3.amazonaws.com/b", "one object"),
            ("s3::https://s3.amazonaws.com/b/k/", "one object"),
            ("s3::https://s3.amazonaws.com/b/k?aws_access_key_id=x", "needs both"),
            ("s3::https://s3.amazonaws.com/b/k?aws_profile=x", "aws_profile"),
            ("https://h/dir/", "names no file"),
            ("https:///x", "no"),
            ("https://h/x?archive=rar", "unknown archive type \"rar\""),
            ("https://h/x?checksum=sha3:00", "unknown checksum type \"sha3\""),
            ("https://h/x?checksum=md5:00", "2 digits"),
            ("https://h/x?filename=../y", "not a plain file name"),
            ("https://h/x.tar//../y", "leads out"),
            ("https://h/x//y", "neither"),
            ("x?y=z", "unknown option \"y\""),
            ("file://host/x", "write file:///path"),
        ] {
            assert!(parse(text).is_err_and(|error| error.contains(expected)), "{text}: {:?}", parse(text));
        }
    }

    #[test]
    fn archives_are_known_by_their_longest_ending() {
        let kind = |text: &str| parse(text).unwrap().archive;
        assert_eq!(kind("https://h/x.tar.gz"), Some(ArchiveKind::TarGz));
        assert_eq!(kind("https://h/x.gz?y=.zip"), Some(ArchiveKind::Gz));
        assert_eq!(kind("https://h/download?archive=tgz"), Some(ArchiveKind::TarGz));
        assert_eq!(kind("https://h/x.zip?archive=false"), None);
        assert_eq!((kind("https://h/tar"), kind("github.com/a/b.zip")), (None, None));
        assert_eq!(parse("https://h/x.zip//a/b").unwrap().subdir.as_deref(), Some("a/b"));
        assert_eq!(parse("https://h/a%2fb?filename=n").unwrap().name, "n");
    }

    #[test]
    fn secrets_are_not_shown() {
        for (text, expected) in [
            (
                "https://me:secret@h/x?sshkey=secret&ref=v1&aws_access_key_secret=secret",
                "https://...@h/x?sshkey=...&ref=v1&aws_access_key_secret=...",
            ),
            ("https://secret@h/x", "https://...@h/x"),
            ("git::https://:secret@h:81/x//y", "git::https://...@h:81/x//y"),
            ("https://me:se/cret@h/x", "https://.../cret@h/x"),
            ("https://h\\@x", "https://h\\@x"),
            (
                "https://h/x?sig=secret&X-Goog-Signature=secret&token=secret",
                "https://h/x?sig=...&X-Goog-Signature=...&token=...",
            ),
            ("https://h/x?secret", "https://h/x?..."),
            ("https://h/x#access=secret", "https://h/x"),
            ("x?checksum=sha1:ab&archive=zip", "x?checksum=sha1:ab&archive=zip"),
            ("x?checksum=file:https://secret@h/S", "x?checksum=file:https://...@h/S"),
            ("x?checksum=file%3Ahttps://secret@h/S", "x?checksum=..."),
            ("git::ssh://git@h/x", "git::ssh://git@h/x"),
            ("git::ssh://git:secret@h/x", "git::ssh://git:...@h/x"),
            ("git@h:a/b", "git@h:a/b"),
            ("https://[::1]:80/x", "https://[::1]:80/x"),
            ("https://[::1]/x", "https://[::1]/x"),
            ("data/x", "data/x"),
        ] {
            assert_eq!(shown(text), expected);
        }
        for text in [
            "https://secret@h/x?key=secret&checksum=file:https://secret@h/S",
            "git::ssh://git@h/x?sshkey=secret",
            "git::https://h:secret@h/x",
            "s3::https://s3.amazonaws.com/b/k?aws_access_key_id=secret&aws_access_key_secret=secret&aws_access_token=secret",
        ] {
            let told = format!("{:?}", parse(text).unwrap());
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
