//! The second process of the role: drops its privileges, receives the request, and fetches the artifact.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountPropagationFlags, mount_change};
use url::Url;

use super::http::{Client, bare, is_home};
use super::outside::{self, fds};
use super::talk::{Place, Talk, failed};
use super::unpack::{self, Unpacked};
use super::{Done, FetchError, Inside, Message, Request, Setting, digest, git, s3};
use crate::container::{Confinement, confine};
use crate::spec::{ArtifactMode, Checksum, Digest, Getter, Role};
use crate::sys::path::Root;
use crate::sys::{mount, prctl, process};

/// Memory limit of the process, in bytes: enough for the largest windows of xz and zstd, and for git.
const MEMORY_BYTES: u64 = 1 << 30;
/// Longest file of checksums, in bytes.
const LONGEST_LIST: u64 = 1 << 20;
/// The download's name in the staging directory.
const DOWNLOAD: &str = "download";
/// The directory of what was unpacked.
const TREE: &str = "tree";
/// Where the staging directory is mounted in the mount namespace: at the first of these that exists.
const SEEN_AT: [&str; 3] = ["/tmp", "/var/tmp", "/mnt"];
/// Readable paths: programs, libraries, certificates and name resolution.
const READABLE: [&str; 11] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/opt",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
];
/// Devices that every program may use.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// Returns the exit status. Errors that occur before the socket can be used are written to stderr.
pub(super) fn run(setting: &Setting) -> i32 {
    prctl::set_name(Role::ArtifactFetcher.name());
    match work(setting) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

fn work(setting: &Setting) -> io::Result<()> {
    let missing = || io::Error::other("a descriptor is missing");
    let socket = UnixStream::from(process::inherited_fd(fds::SOCKET).ok_or_else(missing)?);
    let lifeline = process::inherited_fd(fds::LIFELINE).ok_or_else(missing)?;
    let staging = process::inherited_fd(fds::STAGING).ok_or_else(missing)?;
    let file = File::from(process::inherited_fd(fds::SOURCE).ok_or_else(missing)?);
    let mounted = if setting.inside.is_some_and(|Inside { mounts }| mounts) {
        Some(process::inherited_fd(fds::MOUNT).ok_or_else(missing)?)
    } else {
        None
    };
    process::close_on_exec_from(3)?;
    let path = match mounted {
        Some(mounted) => see(setting, &mounted)?,
        None => setting.staging.clone(),
    };
    let staging =
        match rustix::fs::openat(CWD, &path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(seen) => seen,
            // Its parent directories belong to this user only, and only git needs the path.
            Err(_) => staging,
        };
    let readable = READABLE.map(Path::new);
    let devices = DEVICES.map(Path::new);
    let confinement = Confinement {
        becomes: setting.becomes,
        writable: staging.as_fd(),
        readable: &readable,
        devices: &devices,
        file_bytes: setting.limits.bytes,
        memory_bytes: MEMORY_BYTES,
    };
    confine(&confinement).map_err(|failure| io::Error::other(format!("{}: {}", failure.step, failure.message)))?;
    if !outside::is_alive(&lifeline)? {
        return Ok(());
    }
    let place = Place { root: Root::from_fd(staging), path };
    let mut talk = Talk { socket, last: None };
    let request = talk.hear()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let message = match crate::sys::task::block_on(&runtime, fetch(&request, &place, file, &mut talk)) {
        Ok(done) => Message::Done(done),
        Err(error) => Message::Failed(error),
    };
    talk.say(&message)
}

/// Mounts the staging directory at a path that every user can reach, and adds the fetcher's user to `/etc/passwd`, which ssh
/// requires. These mounts are visible in this namespace only.
fn see(setting: &Setting, mounted: &OwnedFd) -> io::Result<PathBuf> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    let path = SEEN_AT.into_iter().map(PathBuf::from).find(|path| path.is_dir());
    let path = path.ok_or_else(|| io::Error::other("this machine has no /tmp, where downloads are seen; make it"))?;
    let place = |path: &Path| rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    mount::attach(mounted.as_fd(), place(&path)?.as_fd())?;
    if let Some((uid, gid)) = setting.becomes {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let root = Root::open(&path)?;
        let mut passwd = File::from(root.open_beneath(Path::new("passwd"), flags, Mode::from_raw_mode(0o644))?);
        writeln!(passwd, "fetcher:x:{uid}:{gid}::{}:/bin/false", path.display())?;
        let file = root.open_beneath(Path::new("passwd"), OFlags::PATH, Mode::empty())?;
        let file = mount::clone_mount(file.as_fd())?;
        // If the file does not exist, no program reads it.
        if let Ok(passwd) = place(Path::new("/etc/passwd")) {
            mount::attach(file.as_fd(), passwd.as_fd())?;
        }
        rustix::fs::unlinkat(&root, "passwd", rustix::fs::AtFlags::empty())?;
    }
    Ok(path)
}

async fn fetch(request: &Request, place: &Place, file: File, talk: &mut Talk) -> Result<Done, FetchError> {
    let Request { source, mode, limits, .. } = request;
    source.fits(*mode).map_err(|reason| FetchError::lasting(format!("mode {reason}")))?;
    let headers = &request.headers;
    let mut download = match &source.getter {
        Getter::Git { .. } => {
            git::fetch(request, place)?;
            return Ok(Done { path: part(&place.root, "repository", source.subdir.as_deref())?, file: None });
        }
        Getter::File(_) => file,
        Getter::Http(url) => {
            let url = Url::parse(url).map_err(|error| FetchError::lasting(format!("the URL: {error}")))?;
            let client = Client::new(request)?;
            client.download(&url, headers, new_file(&place.root, DOWNLOAD)?, limits.bytes, talk).await?
        }
        getter @ Getter::S3 { .. } => {
            let (url, none) = (s3::presigned(getter)?, crate::spec::collections::BTreeMap::new());
            let client = Client::new(request)?;
            client.download(&url, &none, new_file(&place.root, DOWNLOAD)?, limits.bytes, talk).await?
        }
    };
    let rewind = |file: &mut File| file.rewind().map_err(failed("read the download again"));
    if let Some(checksum) = &source.checksum {
        let (digest, wanted) = wanted(checksum, request, talk).await?;
        rewind(&mut download)?;
        let found = digest::of(digest, &mut download).map_err(failed("read the download again"))?;
        if found != wanted {
            let name = digest.name();
            return Err(FetchError::passing(format!("wrong checksum: found {name}:{found}, wanted {name}:{wanted}")));
        }
    }
    rewind(&mut download)?;
    let Some(kind) = source.archive else {
        if matches!(source.getter, Getter::File(_)) {
            let mut copy = new_file(&place.root, DOWNLOAD)?;
            io::copy(&mut download, &mut copy).map_err(failed("copy the file"))?;
            let mode = download.metadata().map_err(failed("look at the file"))?.mode() & 0o777;
            rustix::fs::fchmod(&copy, Mode::from_raw_mode(mode | 0o400))
                .map_err(|e| failed("set the file's mode")(e.into()))?;
        }
        return Ok(Done { path: DOWNLOAD.into(), file: Some(source.name.clone()) });
    };
    let packed = download.metadata().map_err(failed("look at the download"))?.len();
    rustix::fs::mkdirat(&place.root, TREE, Mode::from_raw_mode(0o755))
        .map_err(|e| failed("make a directory")(e.into()))?;
    let tree = place.root.open_beneath(Path::new(TREE), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let tree = Root::from_fd(tree.map_err(failed("open a directory"))?);
    let mut unpacked = Unpacked::new(&tree, *limits, packed);
    let result = unpack::unpack(kind, BufReader::with_capacity(128 * 1024, download), &mut unpacked);
    result.map_err(|error| FetchError::lasting(format!("unpack {}: {error}", source.name)))?;
    if *mode != ArtifactMode::File {
        return Ok(Done { path: part(&place.root, TREE, source.subdir.as_deref())?, file: None });
    }
    let files = unpacked.into_files();
    let below = source.subdir.as_deref().map(Path::new);
    let mut files = files.into_iter().filter(|file| below.is_none_or(|below| file.starts_with(below)));
    match (files.next(), files.next()) {
        (Some(one), None) => Ok(Done { path: Path::new(TREE).join(one), file: Some(source.name.clone()) }),
        (None, _) => Err(FetchError::lasting(format!("{} holds no file, and mode = \"file\" needs one", source.name))),
        _ => Err(FetchError::lasting(format!(
            "{} holds several files, and mode = \"file\" takes one; use any or dir, or name one with //",
            source.name
        ))),
    }
}

fn new_file(root: &Root, name: &str) -> Result<File, FetchError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let opened = root.open_beneath(Path::new(name), flags, Mode::from_raw_mode(0o644));
    let file = File::from(opened.map_err(failed("make a file for the download"))?);
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)).map_err(|e| failed("set the file's mode")(e.into()))?;
    Ok(file)
}

/// The checksum that the download must have.
async fn wanted(checksum: &Checksum, request: &Request, talk: &mut Talk) -> Result<(Digest, String), FetchError> {
    let url = match checksum {
        Checksum::Value(digest, value) => return Ok((*digest, value.clone())),
        Checksum::File(url) => url,
    };
    let parsed = Url::parse(url).map_err(|error| FetchError::lasting(format!("the checksum's URL: {error}")))?;
    let list = rustix::fs::memfd_create("checksums", rustix::fs::MemfdFlags::CLOEXEC);
    let list = File::from(list.map_err(|e| failed("make a file in memory")(e.into()))?);
    // Headers are for the artifact's host: the list may be on another host.
    let at_home = match &request.source.getter {
        Getter::Http(source) => Url::parse(source).is_ok_and(|source| is_home(&source, &parsed)),
        _ => false,
    };
    let none = crate::spec::collections::BTreeMap::new();
    let headers = if at_home { &request.headers } else { &none };
    let mut list = Client::new(request)?.download(&parsed, headers, list, LONGEST_LIST, talk).await?;
    let mut bytes = Vec::new();
    list.rewind().and_then(|()| list.read_to_end(&mut bytes)).map_err(failed("read the list of checksums"))?;
    // The name at its source, independent of its name here.
    let name = match &request.source.getter {
        Getter::Http(url) => Url::parse(url).ok().and_then(|url| url.path().rsplit('/').next().map(str::to_owned)),
        Getter::S3 { key, .. } => key.rsplit('/').next().map(str::to_owned),
        _ => None,
    };
    let name = name.unwrap_or_else(|| request.source.name.clone());
    let found = digest::listed(&String::from_utf8_lossy(&bytes), &name);
    found.ok_or_else(|| FetchError::lasting(format!("the list of checksums {} has none for {name}", bare(&parsed))))
}

/// The requested subdirectory of a directory in the staging directory. `*` and `?` in it must match exactly one name.
fn part(root: &Root, top: &str, subdir: Option<&str>) -> Result<PathBuf, FetchError> {
    let mut path = PathBuf::from(top);
    for wanted in subdir.unwrap_or_default().split('/').filter(|part| !part.is_empty() && *part != ".") {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = root.open_beneath(&path, flags, Mode::empty()).map_err(failed("look for the part"))?;
        let mut found = Vec::new();
        let entries = rustix::fs::Dir::read_from(&dir).map_err(|e| failed("look for the part")(e.into()))?;
        for entry in entries {
            let entry = entry.map_err(|e| failed("look for the part")(e.into()))?;
            let name = String::from_utf8_lossy(entry.file_name().to_bytes()).into_owned();
            if !matches!(name.as_str(), "." | ".." | ".git") && fits(wanted.as_bytes(), name.as_bytes()) {
                found.push(name);
            }
        }
        let [name] = found.as_slice() else {
            let many = if found.is_empty() { "nothing" } else { "several names" };
            return Err(FetchError::lasting(format!(
                "{many} in what was fetched fits \"//{}\"",
                subdir.unwrap_or_default()
            )));
        };
        path.push(name);
    }
    Ok(path)
}

/// Whether a name matches a pattern of `*`, `?` and other characters.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The position of the last star, and how much of the name it has matched.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((stands, taken)) = star else { return false };
                star = Some((stands, taken + 1));
                (at, from) = (stands + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_fit_names() {
        for (pattern, name) in
            [("a", "a"), ("*", ""), ("a*c", "abbc"), ("x-*", "x-1.0"), ("a?c", "abc"), ("*b*", "abc")]
        {
            assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "b"), ("a*c", "abb"), ("?", ""), ("a", "ab"), ("*x*", "abc")] {
            assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }
}
