//! Many watches one after the other. Alone in its program: it takes all that the system lends to one user.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::time::{Duration, Instant};

use ahp_types::commands::CreateResourceWatchParams;
use breakbulk_host::files::{FileError, Files, FilesConfig, uri_of};

/// Longer than any machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_dropped_watch_gives_back_what_the_system_lent() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = FilesConfig::new(vec![dir.path().to_path_buf()]);
    config.max_watches = 1;
    let files = Files::new(config).unwrap();
    let params = CreateResourceWatchParams {
        channel: "ahp-root://".into(),
        meta: None,
        uri: uri_of(dir.path()),
        recursive: Some(true),
        excludes: None,
        includes: None,
    };
    let end = Instant::now() + PATIENCE;
    // More than Linux lends to one user at once. It takes them back a little later than we give them.
    for _ in 0..200 {
        while let Err(error) = files.watch(params.clone()).await {
            assert!(matches!(error, FileError::Watch(_)) && Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
