//! Errors of files, one variant for each reaction of a caller.

use std::path::PathBuf;

use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use rustix::io::Errno;
use serde_json::{Value, json};
use thiserror::Error;

use super::uri::UriError;
use crate::error::MethodError;

/// Why a resource method failed.
///
/// [`code`](Self::code) and [`data`](Self::data) are what a client gets, with the text of this error as the message. No
/// variant says anything about a path outside of the roots, not even whether it exists.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The URI is not one of a file here.
    #[error("{0}")]
    Uri(#[from] UriError),
    /// Nothing is there, or a directory on the way to it is missing.
    #[error("not found")]
    NotFound,
    /// The path leads out of the roots, by itself or through a symbolic link.
    #[error("outside of the directories that this host serves (its roots)")]
    Outside,
    /// A root, or a directory with a root in it, cannot be deleted, moved or replaced.
    #[error("a root cannot be deleted, moved or replaced")]
    IsRoot,
    /// The operating system says no.
    #[error("permission denied by the file system")]
    Denied,
    /// A device, a pipe or a socket. None is ever opened.
    #[error("a device, pipe or socket, not a regular file")]
    Special,
    /// Something exists there, and the caller did not want to replace it.
    #[error("already exists")]
    AlreadyExists,
    /// The file is no longer the one that `ifMatch` names.
    #[error("the file has changed since the version that ifMatch names")]
    Conflict,
    /// A directory, where only a file will do.
    #[error("a directory, where a file is needed")]
    IsDirectory,
    /// Not a directory, where only a directory will do.
    #[error("not a directory")]
    NotADirectory,
    /// A directory with something in it, without `recursive`.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Source and destination are inside of each other.
    #[error("source and destination overlap")]
    Overlap,
    /// `position` is negative or past the end.
    #[error("position {position} is outside of a file of {size} bytes")]
    Position {
        /// What was asked for.
        position: i64,
        /// What the file has.
        size: u64,
    },
    /// `data` is not what its encoding says.
    #[error("the data is not valid base64")]
    BadBase64,
    /// A pattern of a watch is not a glob, or there are too many.
    #[error("a pattern of the watch cannot be used")]
    BadPattern,
    /// More bytes than are allowed at once.
    #[error("{size} bytes are over the limit of {limit}")]
    TooLarge {
        /// The actual size or number, or a lower bound of it.
        size: u64,
        /// What is allowed.
        limit: u64,
    },
    /// More files and directories than are allowed at once.
    #[error("more than {limit} files and directories, which is the limit")]
    TooMany {
        /// What is allowed.
        limit: usize,
    },
    /// Directories inside of directories, more levels than are allowed.
    #[error("more than {limit} levels of directories, which is the limit")]
    TooDeep {
        /// What is allowed.
        limit: usize,
    },
    /// The limit of watches at once is reached.
    #[error("there are {limit} watches already, which is the limit: unsubscribe from some first")]
    TooManyWatches {
        /// What is allowed.
        limit: usize,
    },
    /// Too many symbolic links on one path, or one that changes faster than it can be followed.
    #[error("too many symbolic links")]
    Links,
    /// The disk is full.
    #[error("the disk of the host is full")]
    Full,
    /// Changes cannot be watched: the system has no more watches to give.
    #[error("changes cannot be watched: {0}")]
    Watch(String),
    /// Anything else that a file system says.
    #[error("{0}")]
    System(String),
}

impl FileError {
    /// The error code of the Agent Host Protocol, or of JSON-RPC where that has none.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::NotFound | Self::Uri(UriError::NotFile) => ahp_error_codes::NOT_FOUND,
            Self::Outside | Self::IsRoot | Self::Denied | Self::Special => ahp_error_codes::PERMISSION_DENIED,
            Self::AlreadyExists => ahp_error_codes::ALREADY_EXISTS,
            Self::Conflict => ahp_error_codes::CONFLICT,
            Self::Uri(_)
            | Self::IsDirectory
            | Self::NotADirectory
            | Self::NotEmpty
            | Self::Overlap
            | Self::Position { .. }
            | Self::BadBase64
            | Self::BadPattern
            | Self::TooLarge { .. }
            | Self::TooMany { .. }
            | Self::TooDeep { .. }
            | Self::TooManyWatches { .. }
            | Self::Links => json_rpc_error_codes::INVALID_PARAMS,
            Self::Full | Self::Watch(_) | Self::System(_) => json_rpc_error_codes::INTERNAL_ERROR,
        }
    }

    /// What goes beside the message: a `reason` for programs, and the sizes where there are some.
    #[must_use]
    pub fn data(&self) -> Value {
        let mut data = json!({ "reason": self.reason() });
        match self {
            Self::Position { size, .. } => data["size"] = json!(size),
            Self::TooLarge { size, limit } => {
                data["size"] = json!(size);
                data["limit"] = json!(limit);
            }
            Self::TooMany { limit } | Self::TooDeep { limit } | Self::TooManyWatches { limit } => {
                data["limit"] = json!(limit)
            }
            _ => {}
        }
        data
    }

    /// One word for each variant, for programs and counters.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Uri(_) => "badUri",
            Self::NotFound => "notFound",
            Self::Outside => "outsideRoots",
            Self::IsRoot => "isRoot",
            Self::Denied => "denied",
            Self::Special => "specialFile",
            Self::AlreadyExists => "alreadyExists",
            Self::Conflict => "conflict",
            Self::IsDirectory => "isDirectory",
            Self::NotADirectory => "notADirectory",
            Self::NotEmpty => "notEmpty",
            Self::Overlap => "overlap",
            Self::Position { .. } => "position",
            Self::BadBase64 => "badBase64",
            Self::BadPattern => "badPattern",
            Self::TooLarge { .. } => "tooLarge",
            Self::TooMany { .. } | Self::TooDeep { .. } | Self::TooManyWatches { .. } => "tooMany",
            Self::Links => "tooManyLinks",
            Self::Full => "diskFull",
            Self::Watch(_) => "watch",
            Self::System(_) => "system",
        }
    }
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        match errno {
            // A name under a file is not there; one that is too long cannot be.
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => Self::NotFound,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied,
            Errno::EXIST => Self::AlreadyExists,
            Errno::ISDIR => Self::IsDirectory,
            Errno::NOTEMPTY => Self::NotEmpty,
            Errno::LOOP => Self::Links,
            Errno::NXIO | Errno::NODEV => Self::Special,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::Full,
            other => Self::System(other.to_string()),
        }
    }
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Self::System(error.to_string()),
        }
    }
}

/// Why a root cannot be used.
#[derive(Debug, Error)]
#[error("{} cannot be used as a root: {error}", path.display())]
pub struct RootError {
    /// The root as configured.
    pub path: PathBuf,
    /// What the file system says.
    #[source]
    pub error: std::io::Error,
}

impl From<FileError> for MethodError {
    fn from(error: FileError) -> Self {
        Self::new(error.code(), error.to_string()).with_data(error.data())
    }
}
