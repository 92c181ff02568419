//! Whether a host can do its work: the log can be written and read, and each agent could start.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ahp_types::ROOT_RESOURCE_URI;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tracing::warn;

use crate::agent::Agent;
use crate::log::{Log, ReadError, Seq};

/// How long each check may take. They run at the same time.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// The result of a health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostHealth {
    /// The log first, then the agents.
    pub checks: Vec<HealthCheck>,
    /// How many damaged records of the log were found so far. All others are served.
    pub damaged_records: u64,
}

/// The check of the log or of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// `log`, or `agent:` and its name.
    pub name: String,
    /// What is wrong, if anything, for whoever runs the host.
    pub failure: Option<String>,
}

impl HostHealth {
    /// Checks the log and all agents.
    pub(crate) async fn check(log: &dyn Log, agents: &[Arc<dyn Agent>]) -> Self {
        let mut asked = tokio::task::JoinSet::new();
        for (at, agent) in agents.iter().enumerate() {
            let agent = Arc::clone(agent);
            asked.spawn(async move {
                (at, within_check_time(async { agent.check().await.map_err(|error| error.to_string()) }).await)
            });
        }
        let mut checks =
            vec![HealthCheck { name: "log".to_owned(), failure: within_check_time(check_log(log)).await.err() }];
        let names = agents.iter().map(|agent| format!("agent:{}", agent.name()));
        // The check of an agent that panics gives no answer.
        checks.extend(names.map(|name| HealthCheck { name, failure: Some("it gives no answer".to_owned()) }));
        while let Some(done) = asked.join_next().await {
            if let Ok((at, result)) = done
                && let Some(check) = checks.get_mut(at.saturating_add(1))
            {
                check.failure = result.err();
            }
        }
        for check in &checks {
            if let Some(failure) = &check.failure {
                warn!(check = check.name, "a health check failed: {failure}");
            }
        }
        let damaged_records = log.metrics().damaged.load(Relaxed);
        if damaged_records > 0 {
            warn!(damaged_records, "records of the log are damaged: `breakbulk log verify` names them");
        }
        Self { checks, damaged_records }
    }

    /// Whether the host can do its work. It can, even if records are damaged.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.checks.iter().all(|check| check.failure.is_none())
    }

    /// What everybody may know: the names of the checks, and whether each has passed.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let word = |good| if good { "ok" } else { "failed" };
        let one = |check: &HealthCheck| (check.name.clone(), Value::from(word(check.failure.is_none())));
        let checks: Map<String, Value> = self.checks.iter().map(one).collect();
        let mut all = json!({ "status": word(self.is_good()), "checks": checks });
        if self.damaged_records > 0 {
            if self.is_good() {
                all["status"] = "degraded".into();
            }
            all["damagedRecords"] = self.damaged_records.into();
        }
        all
    }
}

async fn within_check_time(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    timeout(CHECK_TIME, work).await.unwrap_or_else(|_| Err(format!("no answer in {} s", CHECK_TIME.as_secs())))
}

/// Checks that the log can be written, and that the newest entry of the root channel can be read.
async fn check_log(log: &dyn Log) -> Result<(), String> {
    let health = log.health().borrow().clone();
    if !health.is_good() {
        return Err(health.to_string());
    }
    let bounds = log.bounds().await.map_err(|error| error.to_string())?;
    match log.read(ROOT_RESOURCE_URI, bounds.last..Seq::MAX, 1).await {
        // A trimmed entry is in a snapshot.
        Ok(_) | Err(ReadError::Trimmed { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use ahp_types::state::AgentInfo;

    use super::*;
    use crate::agent::demo::Demo;
    use crate::agent::{AgentError, Start, Started};
    use crate::log::sqlite::{Options, SqliteLog};
    use crate::log::{BoxFuture, MemoryLog};

    /// An agent whose check succeeds, fails, or never answers (`None`).
    struct Stub(&'static str, Option<Result<(), AgentError>>);

    impl Agent for Stub {
        fn name(&self) -> &str {
            self.0
        }

        fn info(&self) -> AgentInfo {
            Demo::default().info()
        }

        fn start(&self, _: Start) -> BoxFuture<'_, Result<Started, AgentError>> {
            Box::pin(async { Err(AgentError::Ended) })
        }

        fn check(&self) -> BoxFuture<'_, Result<(), AgentError>> {
            let answer = self.1.clone();
            Box::pin(async move {
                match answer {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            })
        }
    }

    async fn check(agents: Vec<Stub>) -> HostHealth {
        let agents: Vec<_> = agents.into_iter().map(|agent| Arc::new(agent) as Arc<dyn Agent>).collect();
        HostHealth::check(&MemoryLog::new(), &agents).await
    }

    #[tokio::test]
    async fn all_is_well_where_log_and_agents_are() {
        let health = check(vec![Stub("a", Some(Ok(())))]).await;
        assert!(health.is_good(), "{health:?}");
        assert_eq!(health.to_json(), json!({ "status": "ok", "checks": { "log": "ok", "agent:a": "ok" } }));
    }

    #[tokio::test]
    async fn a_log_that_acknowledges_nothing_is_not_well() {
        let dir = tempfile::tempdir().unwrap();
        let log = SqliteLog::open(dir.path(), Options::default()).await.unwrap();
        assert!(HostHealth::check(&log, &[]).await.is_good());
        log.close().await;
        let health = HostHealth::check(&log, &[]).await;
        assert_eq!(health.to_json(), json!({ "status": "failed", "checks": { "log": "failed" } }));
    }

    #[tokio::test]
    async fn a_log_with_damaged_records_works_and_says_how_many_were_found() {
        let dir = tempfile::tempdir().unwrap();
        let log = SqliteLog::open(dir.path(), Options::default()).await.unwrap();
        let batch = crate::log::Batch::new().open("c", None).entry("c", "1").entry("c", "2");
        let seqs = log.append(batch).await.unwrap();
        log.close().await;
        let disk = rusqlite::Connection::open(dir.path().join("log.db")).unwrap();
        disk.execute("UPDATE entry SET crc = crc + 1 WHERE seq = ?1", [seqs[0]]).unwrap();
        drop(disk);
        let log = SqliteLog::open(dir.path(), Options::default()).await.unwrap();
        assert_eq!(HostHealth::check(&log, &[]).await.to_json()["status"], "ok");
        for _ in 0..3 {
            assert!(log.read("c", 0..Seq::MAX, 9).await.is_err());
        }
        let health = HostHealth::check(&log, &[]).await;
        assert!(health.is_good());
        let expected = json!({ "status": "degraded", "checks": { "log": "ok" }, "damagedRecords": 1 });
        assert_eq!(health.to_json(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_fails_or_is_silent_is_named_and_nothing_more_is_told() {
        let gone = Some(Err(AgentError::Unavailable("/opt/agent is missing".into())));
        let health = check(vec![Stub("a", gone), Stub("b", None), Stub("c", Some(Ok(())))]).await;
        let checks = json!({ "log": "ok", "agent:a": "failed", "agent:b": "failed", "agent:c": "ok" });
        assert_eq!(health.to_json(), json!({ "status": "failed", "checks": checks }));
        let failures: Vec<_> = health.checks.iter().filter_map(|check| check.failure.as_deref()).collect();
        assert_eq!(failures, ["the agent is not available: /opt/agent is missing", "no answer in 2 s"]);
    }
}
