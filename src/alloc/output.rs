//! Where the output of an allocation's tasks goes besides its log files: log sinks, and copies that outlive the allocation.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::atomic::write_atomically;
use super::control::AllocView;
use super::machine_error::{Doing as _, MachineError};
use super::run::Alloc;
use crate::driver::{self, Reader};
use crate::logs::keep::{self, Kept};
use crate::logs::ship::{self, Outlets, Shipment, Sink};
use crate::spec::json;
use crate::spec::{AllocId, Order as _};
use crate::sys::mutant;
use crate::sys::owned::OwnDir;

/// How long log sinks may take to send the remaining output after the job has ended.
pub const SINKS_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a kept log file beyond its limit.
const KEPT_MORE: u64 = 1 << 20;
/// How long copying logs may still take after an urgent stop: most copies are finished by then.
const LAST_LOGS: Duration = Duration::from_millis(100);

/// The file next to kept logs that describes their allocation.
const VIEW: &str = "alloc.json";
/// The file next to kept logs with the messages of the run.
const MESSAGES: &str = "supervisor.log";
/// Most bytes of the description.
const LONGEST_VIEW: u64 = 16 << 20;

/// The ended allocations of background jobs, by the descriptions kept below `dir`.
///
/// # Errors
/// When another user may write to the directory, or it cannot be read; a missing directory has none.
pub fn ended(dir: &Path) -> io::Result<Vec<AllocView>> {
    let own = match OwnDir::open(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        own => own?,
    };
    let mut views = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name.to_str().and_then(AllocId::parse).is_none() {
            continue;
        }
        // Logs of a foreground run have no description, and a file that other users could have written is not read.
        let Ok(bytes) = own.enter(&name).and_then(|kept| kept.read(VIEW.as_ref(), LONGEST_VIEW)) else { continue };
        let Ok(view) = json::from_slice::<AllocView>(&bytes) else { continue };
        views.push(AllocView { logs: dir.join(&name), ..view });
    }
    views.order_by(|one, other| one.created_at.cmp(&other.created_at));
    Ok(views)
}

/// The file with the messages of a background run. It lies in the directory in which the logs of the run's first allocation
/// will be kept.
#[derive(Debug)]
pub struct Messages {
    dir: OwnDir,
    file: File,
}

impl Messages {
    /// Creates it below `dir`, next to the logs that will be kept of the allocation with this id.
    ///
    /// # Errors
    /// As [`OwnDir::make`]; what the file system says.
    pub fn new(dir: &Path, id: &AllocId) -> io::Result<Messages> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let dir = OwnDir::open(dir)?.make(id.as_str().as_ref(), 0o700)?;
        let file = dir.lock_file(MESSAGES.as_ref())?;
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND)?;
        Ok(Messages { dir, file })
    }

    /// Its path, for people.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(MESSAGES)
    }

    /// The file, opened for appending.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Its size in bytes.
    ///
    /// # Errors
    /// What `fstat(2)` says.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Removes the file if it is empty.
    ///
    /// # Errors
    /// What the file system says.
    pub fn tidy(&self) -> io::Result<()> {
        if self.size()? > 0 {
            return Ok(());
        }
        Ok(rustix::fs::unlinkat(&self.dir, MESSAGES, rustix::fs::AtFlags::empty())?)
    }
}

impl Alloc {
    /// Starts to send the output of its tasks to the sinks that their configurations name, and to `sinks`.
    ///
    /// # Errors
    /// When a configuration cannot be read, or when a file cannot be created or followed.
    pub fn shipments(&self, sinks: &[Sink], outlets: &Outlets) -> Result<Vec<Shipment>, MachineError> {
        let mut shipments = Vec::new();
        for task in self.group().tasks.iter().filter(|t| !t.logs.disabled) {
            let mut wanted = driver::log_sinks(&Reader::any("", &task.config)).doing("cannot ship the output")?;
            wanted.extend_from_slice(sinks);
            let labels = ship::Labels {
                job: self.job().id.clone(),
                group: self.group().name.clone(),
                task: task.name.clone(),
                alloc: self.id().to_string(),
            };
            let records = ship::records(self.dir());
            let shipment = Shipment::start(outlets, &wanted, &labels, &self.log_dir(), &records);
            shipments.push(shipment.doing("cannot ship the output")?);
        }
        Ok(shipments)
    }

    /// Copies the log files of its tasks below `dir`, where they stay. Once `given_up` has completed, files that are not copied
    /// shortly afterwards are lost. Returns error messages.
    pub async fn keep_logs(&self, dir: &Path, given_up: impl Future<Output = ()>) -> Vec<String> {
        let (id, logs, streams, place) = (self.id().to_string(), self.log_dir(), self.kept_streams(), dir.to_owned());
        let cancel = Arc::new(AtomicBool::new(false));
        let cancelled = Arc::clone(&cancel);
        let kept = move || {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
            if mutant::on("d62") {
                return std::fs::rename(logs, place.join(id)).map(|()| Vec::new());
            }
            keep::keep(&logs, &streams, &OwnDir::open(&place)?.make(id.as_ref(), 0o700)?, &cancelled)
        };
        let mut copying = crate::sys::task::spawn_blocking(kept);
        // The copy is always waited for: the files that it reads are about to be removed.
        let in_time = async {
            given_up.await;
            tokio::time::sleep(LAST_LOGS).await;
        };
        let copied = tokio::select! {
            biased;
            copied = &mut copying => Some(copied),
            () = in_time => None,
        };
        let copied = if let Some(copied) = copied {
            copied
        } else {
            cancel.store(true, Ordering::Relaxed);
            copying.await
        };
        match copied {
            Ok(Ok(errors)) => errors.iter().map(ToString::to_string).collect(),
            Ok(Err(error)) => vec![error.to_string()],
            Err(error) => vec![error.to_string()],
        }
    }

    /// Writes the final status next to the logs that were kept below `dir`, for [`ended`].
    ///
    /// # Errors
    /// What the file system says.
    pub fn keep_view(&self, dir: &Path) -> io::Result<()> {
        let view = AllocView { run: None, ..self.control().view() };
        write_atomically(&dir.join(self.id().as_str()).join(VIEW), &json::to_vec_pretty(&view)?)
    }

    /// The streams whose log files are kept.
    fn kept_streams(&self) -> Vec<Kept> {
        let tasks = self.group().tasks.iter().filter(|task| !task.logs.disabled);
        tasks
            .flat_map(|task| {
                ["stdout", "stderr"].map(|stream| Kept {
                    base: format!("{}.{stream}", task.name),
                    max_files: task.logs.max_files,
                    // A line is never cut because of the limit.
                    max_bytes: (u64::from(task.logs.max_file_size_mib) << 20) + KEPT_MORE,
                })
            })
            .collect()
    }
}
