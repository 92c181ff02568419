//! Two roots, a secret beside them, and short names for the methods.

use std::path::{Path, PathBuf};

use ahp_types::commands::{
    ContentEncoding, ResourceCopyParams, ResourceDeleteParams, ResourceListParams, ResourceMkdirParams,
    ResourceMoveParams, ResourceReadParams, ResourceReadResult, ResourceResolveParams, ResourceResolveResult,
    ResourceWriteMode, ResourceWriteParams,
};
use breakbulk_host::test_support::files::{FileError, Files, FilesConfig, uri_of};
use tempfile::TempDir;

pub(crate) const SECRET: &str = "the secret outside";

/// A directory with `one` and `two`, which are roots, and `outside`, which is not.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) files: Files,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut FilesConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one", "two", "outside"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("outside/secret"), SECRET).unwrap();
        let mut config = FilesConfig::new([dir.path().join("one"), dir.path().join("two")]);
        change(&mut config);
        let files = Files::new(config).unwrap();
        Self { dir, files }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn uri(&self, path: &str) -> String {
        uri_of(&self.path(path))
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(path), content).unwrap();
    }

    pub(crate) fn get(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    pub(crate) fn link(&self, target: impl AsRef<Path>, path: &str) {
        std::os::unix::fs::symlink(target, self.path(path)).unwrap();
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// The names in a directory, hidden ones too: nothing temporary may stay behind.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) async fn read(&self, path: &str) -> Result<ResourceReadResult, FileError> {
        self.files.read(read_params(self.uri(path), None)).await
    }

    pub(crate) async fn text(&self, path: &str) -> Result<String, FileError> {
        self.read(path).await.map(|read| read.data)
    }

    pub(crate) async fn write(&self, path: &str, data: &str) -> Result<(), FileError> {
        self.files.write(write_params(self.uri(path), data)).await.map(|_| ())
    }

    pub(crate) async fn write_at(
        &self,
        path: &str,
        data: &str,
        mode: ResourceWriteMode,
        position: i64,
    ) -> Result<(), FileError> {
        let params =
            ResourceWriteParams { mode: Some(mode), position: Some(position), ..write_params(self.uri(path), data) };
        self.files.write(params).await.map(|_| ())
    }

    pub(crate) async fn list(&self, path: &str) -> Result<Vec<(String, String)>, FileError> {
        let params = ResourceListParams { channel: root(), meta: None, uri: self.uri(path) };
        let listed = self.files.list(params).await?;
        Ok(listed.entries.into_iter().map(|entry| (entry.name, entry.r#type)).collect())
    }

    pub(crate) async fn resolve(&self, path: &str, follow: bool) -> Result<ResourceResolveResult, FileError> {
        let uri = self.uri(path);
        let params = ResourceResolveParams { channel: root(), meta: None, uri, follow_symlinks: Some(follow) };
        self.files.resolve(params).await
    }

    pub(crate) async fn mkdir(&self, path: &str) -> Result<(), FileError> {
        let params = ResourceMkdirParams { channel: root(), meta: None, uri: self.uri(path) };
        self.files.mkdir(params).await.map(|_| ())
    }

    pub(crate) async fn delete(&self, path: &str, recursive: bool) -> Result<(), FileError> {
        let uri = self.uri(path);
        let params = ResourceDeleteParams { channel: root(), meta: None, uri, recursive: Some(recursive) };
        self.files.delete(params).await.map(|_| ())
    }

    pub(crate) async fn copy(&self, source: &str, destination: &str, fail_if_exists: bool) -> Result<(), FileError> {
        let (source, destination) = (self.uri(source), self.uri(destination));
        let fail_if_exists = Some(fail_if_exists);
        let params = ResourceCopyParams { channel: root(), meta: None, source, destination, fail_if_exists };
        self.files.copy(params).await.map(|_| ())
    }

    pub(crate) async fn rename(&self, source: &str, destination: &str, fail_if_exists: bool) -> Result<(), FileError> {
        let (source, destination) = (self.uri(source), self.uri(destination));
        let fail_if_exists = Some(fail_if_exists);
        let params = ResourceMoveParams { channel: root(), meta: None, source, destination, fail_if_exists };
        self.files.rename(params).await.map(|_| ())
    }
}

pub(crate) fn read_params(uri: String, encoding: Option<ContentEncoding>) -> ResourceReadParams {
    ResourceReadParams { channel: root(), meta: None, uri, encoding }
}

pub(crate) fn write_params(uri: String, data: &str) -> ResourceWriteParams {
    ResourceWriteParams {
        channel: root(),
        meta: None,
        uri,
        data: data.to_owned(),
        encoding: ContentEncoding::Utf8,
        content_type: None,
        create_only: None,
        mode: None,
        position: None,
        if_match: None,
    }
}

pub(crate) fn root() -> String {
    "ahp-root://".to_owned()
}

/// A pipe that nobody reads or writes.
pub(crate) fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}
