//! How a volume is used: access and attachment modes by Nomad's names, mount options, and secrets. Values that may be secret
//! are never shown.

use std::collections::HashMap;
use std::fmt;

use sha2::{Digest as _, Sha256};

use super::error::CsiError;
use crate::spec::collections::BTreeMap;
use crate::spec::{MountOptions, REDACTED};
use crate::wire::csi as wire;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessType, BlockVolume, MountVolume};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal, $($(#[$case_doc:meta])* $case:ident = $word:literal,)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$case_doc])* #[serde(rename = $word)] $case,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$case,)*];

            /// Nomad's name of the value.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $($name::$case => $word,)*
                }
            }

            /// Parses a name.
            ///
            /// # Errors
            /// The error lists the valid names.
            pub fn from_word(word: &str) -> Result<$name, CsiError> {
                let known = $name::ALL.iter().copied();
                known.clone().find(|one| one.word() == word).ok_or_else(|| {
                    let words: Vec<_> = known.map($name::word).collect();
                    CsiError::invalid(format!("unknown volume {} {word:?}; use one of {}", $what, words.join(", ")))
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// Who may use a volume, and how.
    AccessMode, "access mode",
    /// One node reads.
    SingleNodeReaderOnly = "single-node-reader-only",
    /// One node reads and writes.
    SingleNodeWriter = "single-node-writer",
    /// One allocation of one node reads and writes.
    SingleNodeSingleWriter = "single-node-single-writer",
    /// Several allocations of one node read and write.
    SingleNodeMultiWriter = "single-node-multi-writer",
    /// Several nodes read.
    MultiNodeReaderOnly = "multi-node-reader-only",
    /// Several nodes read, one of them writes.
    MultiNodeSingleWriter = "multi-node-single-writer",
    /// Several nodes read and write.
    MultiNodeMultiWriter = "multi-node-multi-writer",
}

words! {
    /// How a volume appears to its users.
    AttachmentMode, "attachment mode",
    /// Directories and files.
    FileSystem = "file-system",
    /// A raw device.
    BlockDevice = "block-device",
}

impl AccessMode {
    /// Whether all users only read.
    #[must_use]
    pub const fn is_reader_only(self) -> bool {
        matches!(self, AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly)
    }

    /// Whether only a plugin that distinguishes several writers on one node supports it.
    #[must_use]
    pub const fn needs_multi_writer(self) -> bool {
        matches!(self, AccessMode::SingleNodeSingleWriter | AccessMode::SingleNodeMultiWriter)
    }

    /// How many allocations may use a volume at a time on one node, the only one that is known here; `None` for no limit.
    #[must_use]
    pub const fn most_writers(self) -> Option<usize> {
        match self {
            AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly => Some(0),
            AccessMode::SingleNodeWriter | AccessMode::SingleNodeSingleWriter | AccessMode::MultiNodeSingleWriter => {
                Some(1)
            }
            AccessMode::SingleNodeMultiWriter | AccessMode::MultiNodeMultiWriter => None,
        }
    }

    const fn mode(self) -> Mode {
        match self {
            AccessMode::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
            AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
            AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
            AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
            AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
            AccessMode::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
            AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        }
    }

    fn from_mode(mode: Mode) -> Option<AccessMode> {
        AccessMode::ALL.iter().copied().find(|one| one.mode() == mode)
    }
}

/// Names and values that a plugin needs and that must stay secret. `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeMap<String, String>);

impl Secrets {
    pub(super) fn wire(&self) -> HashMap<String, String> {
        self.0.clone().into_iter().collect()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|key| (key, REDACTED))).finish()
    }
}

/// The requested use of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Who may use it, and how.
    pub access: AccessMode,
    /// How it appears to its users.
    pub attachment: AttachmentMode,
    /// For a file system.
    pub options: MountOptions,
}

impl Capability {
    /// Parses the names in a job.
    ///
    /// # Errors
    /// An unknown name, or mount options where nothing is mounted.
    pub fn from_words(access: &str, attachment: &str, options: MountOptions) -> Result<Capability, CsiError> {
        let (access, attachment) = (AccessMode::from_word(access)?, AttachmentMode::from_word(attachment)?);
        if attachment == AttachmentMode::BlockDevice && options != MountOptions::default() {
            let message = "a volume with attachment mode \"block-device\" has no mount options; remove mount_options";
            return Err(CsiError::invalid(message.to_owned()));
        }
        Ok(Capability { access, attachment, options })
    }

    pub(super) fn wire(&self) -> wire::VolumeCapability {
        let access_type = match self.attachment {
            AttachmentMode::BlockDevice => AccessType::Block(BlockVolume {}),
            AttachmentMode::FileSystem => AccessType::Mount(MountVolume {
                fs_type: self.options.fs_type.clone(),
                mount_flags: self.options.flags.clone(),
                volume_mount_group: String::new(),
            }),
        };
        let mode = wire::volume_capability::AccessMode { mode: self.access.mode().into() };
        wire::VolumeCapability { access_type: Some(access_type), access_mode: Some(mode) }
    }

    /// The capability in a plugin's answer; `None` if it has no name here.
    pub(super) fn from_wire(said: &wire::VolumeCapability) -> Option<Capability> {
        let access = AccessMode::from_mode(said.access_mode?.mode())?;
        Some(match said.access_type.as_ref()? {
            AccessType::Block(BlockVolume {}) => {
                Capability { access, attachment: AttachmentMode::BlockDevice, options: MountOptions::default() }
            }
            AccessType::Mount(mount) => Capability {
                access,
                attachment: AttachmentMode::FileSystem,
                options: MountOptions { fs_type: mount.fs_type.clone(), flags: mount.mount_flags.clone() },
            },
        })
    }

    /// The part of it that is recorded.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut digest = Sha256::new();
        for flag in &self.options.flags {
            digest.update(flag.len().to_le_bytes());
            digest.update(flag);
        }
        let flags = if self.options.flags.is_empty() { String::new() } else { hex(&digest.finalize()) };
        Usage { access: self.access, attachment: self.attachment, fs_type: self.options.fs_type.clone(), flags }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// How a volume is used, as recorded: mount flags, which may be secrets, are recorded as a hash that only distinguishes them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Who may use it, and how.
    pub access: AccessMode,
    /// How it appears to its users.
    pub attachment: AttachmentMode,
    /// Its file system.
    #[serde(default)]
    pub fs_type: String,
    /// The SHA-256 of the mount flags; empty for none.
    #[serde(default)]
    pub flags: String,
}

impl Usage {
    /// Name of the directory in which a volume is mounted for this use.
    pub(super) fn dir_name(&self, read_only: bool) -> String {
        let rights = if read_only { "ro" } else { "rw" };
        format!("{rights}-{}-{}", self.attachment, self.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f6_every_use_has_a_word_and_comes_back_from_the_plugin() {
        for access in AccessMode::ALL {
            for attachment in AttachmentMode::ALL {
                let options = match attachment {
                    AttachmentMode::BlockDevice => MountOptions::default(),
                    AttachmentMode::FileSystem => {
                        MountOptions { fs_type: "ext4".to_owned(), flags: vec!["noatime".to_owned()] }
                    }
                };
                let one = Capability::from_words(access.word(), attachment.word(), options).unwrap();
                assert_eq!(Capability::from_wire(&one.wire()).as_ref(), Some(&one));
                let text = serde_json::to_string(&one.usage()).unwrap();
                assert!(text.contains(access.word()) && text.contains(attachment.word()), "{text}");
                assert!(!text.contains("noatime"), "{text}");
                assert_eq!(serde_json::from_str::<Usage>(&text).unwrap(), one.usage());
            }
            let name = access.mode().as_str_name().to_lowercase().replace('_', "-");
            assert_eq!(access.word(), name, "the specification has the same names");
        }
        assert_eq!(AccessMode::from_mode(Mode::Unknown), None);
        assert_eq!(Capability::from_wire(&wire::VolumeCapability::default()), None);
        let error = AccessMode::from_word("single-node-witer").unwrap_err().to_string();
        assert!(error.contains("unknown volume access mode \"single-node-witer\"; use one of single-node-"), "{error}");
        let error = AttachmentMode::from_word("").unwrap_err().to_string();
        assert!(error.contains("unknown volume attachment mode"), "{error}");
        let flags = MountOptions { flags: vec!["x".to_owned()], ..MountOptions::default() };
        assert!(Capability::from_words("single-node-writer", "block-device", flags).is_err());
    }

    #[test]
    fn f6_flags_and_secrets_are_never_shown() {
        let secret = "p4ssw0rd";
        let options = MountOptions { fs_type: "cifs".to_owned(), flags: vec![format!("password={secret}")] };
        let one = Capability::from_words("single-node-writer", "file-system", options.clone()).unwrap();
        let secrets = Secrets([("user".to_owned(), secret.to_owned())].into());
        let shown = format!("{one:?} {one:#?} {options} {options:?} {secrets:?} {secrets:#?} {:?}", options.redacted());
        assert!(!shown.contains(secret), "{shown}");
        assert!(shown.contains("csi.CSIOptions(FSType: cifs, MountFlags: [REDACTED])"), "{shown}");
        assert!(shown.contains("\"user\": \"[REDACTED]\"") && shown.contains("SingleNodeWriter"), "{shown}");
        assert_eq!(options.flags.len(), 1, "what is shown is a copy");
        assert_eq!(MountOptions::default().to_string(), "csi.CSIOptions(FSType: , MountFlags: nil)");
    }

    #[test]
    fn f6_what_a_job_wants_replaces_what_the_volume_has() {
        let options = |fs_type: &str, flags: &[&str]| MountOptions {
            fs_type: fs_type.to_owned(),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        };
        assert_eq!(options("ext4", &["a"]).with(&options("", &[])), options("ext4", &["a"]));
        assert_eq!(options("ext4", &["a"]).with(&options("xfs", &["b", "c"])), options("xfs", &["b", "c"]));
    }
}
