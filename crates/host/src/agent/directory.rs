//! The directory in which an agent works.

use std::path::{Path, PathBuf};

use super::AgentError;

/// The first of these directories, as it really is.
pub(super) async fn working_directory(directories: &[PathBuf]) -> Result<PathBuf, AgentError> {
    let Some(directory) = directories.first().cloned() else {
        let reason = "no working directory was given".to_owned();
        return Err(AgentError::Directory { directory: PathBuf::new(), reason });
    };
    let read = {
        let directory = directory.clone();
        tokio::task::spawn_blocking(move || real(&directory))
    };
    match read.await {
        Ok(Ok(real)) => Ok(real),
        Ok(Err(error)) => Err(AgentError::Directory { directory, reason: error.to_string() }),
        Err(error) => Err(AgentError::Unavailable(error.to_string())),
    }
}

fn real(directory: &Path) -> std::io::Result<PathBuf> {
    let real = directory.canonicalize()?;
    if real.is_dir() { Ok(real) } else { Err(std::io::ErrorKind::NotADirectory.into()) }
}
