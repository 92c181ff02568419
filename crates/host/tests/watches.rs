//! Many watches. Alone in its program: it would take all that the system lends to one user.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::path::Path;
use std::time::Duration;

use ahp_types::commands::CreateResourceWatchParams;
use breakbulk_host::test_support::files::{FileError, Files, FilesConfig, uri_of};
use tokio::time::timeout;

/// Longer than any machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

fn params(dir: &Path) -> CreateResourceWatchParams {
    CreateResourceWatchParams {
        channel: "ahp-root://".into(),
        meta: None,
        uri: uri_of(dir),
        recursive: Some(true),
        excludes: None,
        includes: None,
    }
}

#[tokio::test]
async fn more_watches_at_once_than_linux_lends_instances_all_hear() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = FilesConfig::new(vec![dir.path().to_path_buf()]);
    config.max_watches = 200;
    let files = Files::new(config).unwrap();
    let mut watches = Vec::new();
    for _ in 0..200 {
        watches.push(files.watch(params(dir.path())).await.unwrap());
    }
    // Those that end take nothing from the others.
    watches.drain(5..195);
    std::fs::create_dir(dir.path().join("new")).unwrap();
    for watch in &mut watches {
        assert!(timeout(PATIENCE, watch.next()).await.unwrap().is_some());
    }
    std::fs::rename(dir.path().join("new"), dir.path().join("renamed")).unwrap();
    for watch in &mut watches {
        assert!(timeout(PATIENCE, watch.next()).await.unwrap().is_some());
    }
    std::fs::write(dir.path().join("renamed/file"), "").unwrap();
    for watch in &mut watches {
        let heard = format!("{:?}", timeout(PATIENCE, watch.next()).await.unwrap().unwrap());
        assert!(heard.contains("renamed/file"), "{heard}");
    }
}

#[tokio::test]
async fn a_dropped_watch_gives_back_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = FilesConfig::new(vec![dir.path().to_path_buf()]);
    config.max_watches = 1;
    let files = Files::new(config).unwrap();
    for _ in 0..200 {
        let watch = files.watch(params(dir.path())).await.unwrap();
        assert!(matches!(files.watch(params(dir.path())).await, Err(FileError::TooManyWatches { limit: 1 })));
        drop(watch);
    }
}
