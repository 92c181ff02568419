//! Links over Unix sockets, on which each line is a frame.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;

use breakbulk_proto::Capacity;

use super::lines::Lines;
use crate::external::{Acceptor, ExternalPeer};

/// How long to wait after the system could not accept a client, for example because of too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long we wait for a process that listens on a socket, and is too busy to accept.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// A link over a Unix socket.
pub type Unix = Lines<OwnedReadHalf, OwnedWriteHalf>;

/// Connects to the socket at a path.
///
/// # Errors
/// Nobody listens there, or we may not connect.
pub async fn connect(path: impl AsRef<Path>, capacity: Capacity, max_frame_bytes: u64) -> io::Result<Unix> {
    Ok(link(UnixStream::connect(path).await?, capacity, max_frame_bytes))
}

/// Accepts connections on a Unix socket. Only our user may open its file, which is removed when this is dropped.
#[derive(Debug)]
pub struct UnixSocketListener {
    listener: UnixListener,
    path: PathBuf,
    /// The device and inode of our file. If another file is at the path by then, it is not removed.
    file: (u64, u64),
}

impl UnixSocketListener {
    /// Listens at a path. A socket file on which nobody answers is replaced; anything else that is there stays.
    ///
    /// # Errors
    /// Somebody else listens there (`AddrInUse`), something that is no socket is there (`AlreadyExists`), or the file
    /// cannot be made.
    ///
    /// # Panics
    /// Outside of a tokio runtime with IO and time.
    pub async fn bind(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        check_free(&path).await?;
        // First under a random name. So the file has its mode before anyone can connect, and then replaces a stale one in a single step.
        let hidden = path.with_file_name(hidden_name()?);
        let listener = UnixListener::bind(&hidden)?;
        let publish = || {
            std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
            let file = std::fs::symlink_metadata(&hidden)?;
            std::fs::rename(&hidden, &path)?;
            Ok((file.dev(), file.ino()))
        };
        match publish() {
            Ok(file) => Ok(Self { listener, path, file }),
            Err(error) => {
                let _ = std::fs::remove_file(&hidden);
                Err(error)
            }
        }
    }

    /// The next connection, as a link. Cancel-safe.
    ///
    /// # Errors
    /// The system says so; the listener may still go on.
    pub async fn accept(&self, capacity: Capacity, max_frame_bytes: u64) -> io::Result<Unix> {
        let (stream, _) = self.listener.accept().await?;
        Ok(link(stream, capacity, max_frame_bytes))
    }
}

impl Drop for UnixSocketListener {
    fn drop(&mut self) {
        let is_ours = |file: std::fs::Metadata| (file.dev(), file.ino()) == self.file;
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The processes that connect to a listener, as peers for a gateway.
#[derive(Debug)]
pub struct Peers {
    listener: UnixSocketListener,
    cap: u64,
    max_frame_bytes: u64,
    /// Set after the system could not accept one.
    retry: Option<Pin<Box<Sleep>>>,
}

impl Peers {
    /// Peers that take lines of at most `cap`, from whom frames of at most `max_frame_bytes` are accepted.
    #[must_use]
    pub const fn new(listener: UnixSocketListener, cap: u64, max_frame_bytes: u64) -> Self {
        Self { listener, cap, max_frame_bytes, retry: None }
    }
}

impl Acceptor for Peers {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<ExternalPeer>> {
        loop {
            if let Some(retry) = &mut self.retry {
                ready!(retry.as_mut().poll(cx));
                self.retry = None;
            }
            match ready!(self.listener.listener.poll_accept(cx)) {
                Ok((stream, _)) => {
                    let link = Box::new(link(stream, Capacity::of(self.cap), self.max_frame_bytes));
                    return Poll::Ready(Some(ExternalPeer { link, name: "unix".to_owned(), principal: None }));
                }
                Err(error) => {
                    tracing::warn!("a client could not be accepted: {error}");
                    self.retry = Some(Box::pin(tokio::time::sleep(ACCEPT_RETRY)));
                }
            }
        }
    }
}

fn link(stream: UnixStream, capacity: Capacity, max_frame_bytes: u64) -> Unix {
    let (reader, writer) = stream.into_split();
    Lines::new(reader, writer, capacity, max_frame_bytes)
}

/// Whether a socket may be made at a path.
async fn check_free(path: &Path) -> io::Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    if !file.file_type().is_socket() {
        let text = format!("{} is there and is no socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match tokio::time::timeout(ANSWER_TIME, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A process that is too busy to accept, or to which we may not connect, still listens there.
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, format!("somebody listens on {} already", path.display()))),
    }
}

fn hidden_name() -> io::Result<String> {
    Ok(format!(".{:08x}", getrandom::u32().map_err(io::Error::other)?))
}
