//! Replays that follow a restart, that is, the start of another control process.

use uuid::Uuid;

use super::rows::execute;
use super::{Db, Result, daemons, layouts, replays};
use crate::domain::daemon::{DesiredState, Incarnation};
use crate::domain::layout::Enforcement;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::layout::replay::{Replay, ReplayCause};
use crate::domain::{DaemonName, PartitionId};

/// Number of records of restarts that are kept of each daemon.
const RESTARTS_KEPT: i64 = 32;

/// Begins the record of the replay that follows the start of another control process, if the daemon has a layout that was tried in an
/// earlier process and no operation is changing it: the operation has a record of its own. `id` is the ID of the record, if one is begun.
pub async fn begin(db: &mut Db, name: &DaemonName, started: &Incarnation, id: Uuid, now: i64) -> Result<()> {
    let before = daemons::incarnation(&mut *db, name).await?;
    if before.as_ref().is_some_and(|before| before.token == started.token) {
        return Ok(());
    }
    if let Some(pending) = replays::pending_restart(&mut *db, name).await? {
        if before.is_some_and(|before| before.process.is_none()) {
            // That process never came to be, and this one takes its place.
            return Ok(());
        }
        let why = "the control process ended before its layout was applied".to_owned();
        let ended = Replay { finished_at: Some(now), ..pending.given_up(why, None, Vec::new(), None) };
        replays::put(&mut *db, &ended).await?;
    }
    let spec = daemons::get(&mut *db, name).await?.map(|daemon| daemon.spec);
    // One that starts while it is being cancelled stops before its layout is applied.
    let Some(active) =
        spec.filter(|spec| spec.desired_state == DesiredState::Running).and_then(|spec| spec.layout)
    else {
        return Ok(());
    };
    let tried = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT 1 FROM partition_runs WHERE daemon = ?1) AS "tried!: bool""#,
        name.as_str()
    );
    if !tried.fetch_one(&mut *db).await? || layouts::change(&mut *db, name).await?.is_some() {
        return Ok(());
    }
    // A percentage has no ID that could differ.
    if layouts::content(&mut *db, &active).await?.enforcement == Enforcement::Percentage {
        return Ok(());
    }
    let expected = expected_ids(&mut *db, name, &active).await?;
    let replay = Replay::new(id, name.clone(), active, ReplayCause::Restart, expected, now);
    replays::put(&mut *db, &replay).await?;
    execute!(
        db,
        "DELETE FROM replays WHERE daemon = ?1 AND json_extract(content, '$.cause') = 'restart' AND id NOT IN
             (SELECT id FROM replays WHERE daemon = ?1 AND json_extract(content, '$.cause') = 'restart'
              ORDER BY id DESC LIMIT ?2)",
        name.as_str(),
        RESTARTS_KEPT
    )
}

/// Returns the IDs of the steps of a layout, if they are recorded for the daemon; a layout of percentages has none.
pub async fn expected_ids(
    db: &mut Db,
    daemon: &DaemonName,
    active: &ActiveLayout,
) -> Result<Option<Vec<PartitionId>>> {
    let applied = layouts::applied(db, daemon).await?.filter(|applied| applied.is_of(active));
    Ok(applied.map(|applied| applied.record.ids()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::replays::{end_restart, forget, get, page};
    use super::super::{Store, TransactionEnd};
    use super::*;
    use crate::domain::daemon::DaemonSpec;
    use crate::domain::layout::Layout;
    use crate::domain::layout::record::PartitionRun;
    use crate::domain::layout::replay::Verdict;
    use crate::domain::layout::status::{DriftSeen, LayoutState, LayoutStatus};
    use crate::testing::h200;

    fn incarnation(token: &str, process: Option<(u32, u64)>) -> Incarnation {
        let (token, boot_id) = (token.to_owned(), "boot".to_owned());
        Incarnation { token, boot_id, process, pipe_inode: None, applied: 0, home: None }
    }

    /// A process is started as a driver has it written.
    async fn start(db: &mut Db, token: &str, comes_up: bool, now: i64) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = DaemonName::parse("gpu0").expect("a name");
        for process in [None, comes_up.then_some((7, 8))] {
            let incarnation = incarnation(token, process);
            let id = Uuid::from_u64_pair(0, NEXT.fetch_add(1, Ordering::Relaxed));
            begin(&mut *db, &name, &incarnation, id, now).await?;
            daemons::put_incarnation(&mut *db, &name, &incarnation, now).await?;
        }
        Ok(())
    }

    /// A daemon whose layout is in the store.
    async fn with_layout(db: &mut Db) -> Result<DaemonSpec> {
        let active: ActiveLayout = serde_json::from_value(serde_json::json!({
            "name": "a", "version": 1, "gpu_map": {"0": h200(0).uuid},
        }))
        .expect("a layout");
        let layout: Layout = serde_json::from_str("{\"steps\": []}").expect("a layout");
        let new = layouts::NewVersion { layout: &layout, author: "me", note: None, provenance: None };
        layouts::put(&mut *db, &active.name, &new, 0).await?;
        Ok(DaemonSpec { layout: Some(active), ..DaemonSpec::of(vec![h200(0).uuid]) })
    }

    /// A daemon whose first process has partitions, so that the next one has something to replay.
    async fn begun(db: &mut Db) -> Result<DaemonSpec> {
        let name = DaemonName::parse("gpu0").expect("a name");
        let spec = with_layout(&mut *db).await?;
        daemons::put(&mut *db, &name, &spec, 0).await?;
        start(&mut *db, "first", true, 1).await?;
        assert_eq!(page(&mut *db, None, 99).await?, [], "there was nothing to replay");
        super::super::partitions::put_run(db, &name, &PartitionRun::new("first".into()), 1).await?;
        Ok(spec)
    }

    #[tokio::test]
    async fn each_restart_has_one_replay_record() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let verdicts: Result<_> = store
            .write(|db| {
                Box::pin(async move {
                    let name = DaemonName::parse("gpu0").expect("a name");
                    begun(&mut *db).await?;
                    // One that does not come up, one that dies at once, and one that is judged.
                    for (token, comes_up) in [("second", false), ("third", true), ("fourth", true)] {
                        start(&mut *db, token, comes_up, 2).await?;
                    }
                    let status = LayoutStatus {
                        name: Some(crate::domain::LayoutName::parse("a").expect("a name")),
                        version: Some(1),
                        enforcement: Enforcement::Static,
                        state: LayoutState::Applied,
                        generation: 1,
                        partitions: vec![],
                        drift: vec![],
                        not_repaired: None,
                        drift_seen: DriftSeen::default(),
                        degraded: vec![],
                        failure: None,
                        executed_steps: vec![],
                        ran_at: Some(3),
                        duration_us: Some(5),
                    };
                    for _ in 0..2 {
                        end_restart(&mut *db, &name, &status, 4).await?;
                    }
                    let seen = page(&mut *db, None, 99).await?;
                    for number in 0..40 {
                        start(&mut *db, &number.to_string(), true, 5).await?;
                        end_restart(&mut *db, &name, &LayoutStatus { version: Some(2), ..status.clone() }, 6)
                            .await?;
                    }
                    let kept = page(&mut *db, None, 99).await?;
                    Ok(((seen, kept), TransactionEnd::RollBack))
                })
            })
            .await;
        let (seen, kept) = verdicts.expect("written");
        let verdicts: Vec<_> =
            seen.iter().map(|one| (one.verdict, one.finished_at, one.duration_us)).collect();
        assert_eq!(verdicts, [(Verdict::First, Some(4), Some(5)), (Verdict::Failed, Some(2), None)]);
        assert_eq!(i64::try_from(kept.len()), Ok(RESTARTS_KEPT));
        assert!(kept.iter().all(|one| one.error.as_ref().is_some_and(|why| why.contains("another layout"))));
    }

    #[tokio::test]
    async fn replays_from_another_machine_are_abandoned() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let read: Result<_> = store
            .write(|db| {
                Box::pin(async move {
                    begun(&mut *db).await?;
                    start(&mut *db, "second", true, 2).await?;
                    super::super::host::move_to(&mut *db, "here", "another boot", 3).await?;
                    let read = page(&mut *db, None, 99).await?;
                    forget(&mut *db, 4).await?;
                    Ok(((read, page(&mut *db, None, 99).await?), TransactionEnd::RollBack))
                })
            })
            .await;
        let (read, left) = read.expect("written");
        let verdicts: Vec<_> = read.iter().map(|one| (one.verdict, one.finished_at)).collect();
        assert_eq!(verdicts, [(Verdict::Failed, Some(3))]);
        assert!(read[0].error.as_ref().is_some_and(|why| why.contains("another machine")), "{:?}", read[0]);
        assert_eq!(left, [], "and forgotten in its time");
    }

    #[tokio::test]
    async fn restart_replay_ends_when_desired_layout_changes() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let ended: Result<_> = store
            .write(|db| {
                Box::pin(async move {
                    let name = DaemonName::parse("gpu0").expect("a name");
                    let spec = begun(&mut *db).await?;
                    let another = spec.layout.clone().map(|layout| ActiveLayout { version: 2, ..layout });
                    let mut ended = Vec::new();
                    for (number, changed) in [
                        Some(DaemonSpec { schedulable: false, ..spec.clone() }),
                        Some(DaemonSpec { layout: None, ..spec.clone() }),
                        Some(DaemonSpec { layout: another, ..spec.clone() }),
                        Some(DaemonSpec { desired_state: DesiredState::Stopped, ..spec.clone() }),
                        None,
                    ]
                    .into_iter()
                    .enumerate()
                    {
                        daemons::put(&mut *db, &name, &spec, 2).await?;
                        start(&mut *db, &format!("restart {number}"), true, 3).await?;
                        let began = page(&mut *db, None, 1).await?;
                        assert_eq!((began[0].verdict, began[0].finished_at), (Verdict::Pending, None));
                        match changed {
                            Some(changed) => daemons::put(&mut *db, &name, &changed, 4).await?,
                            None => daemons::delete(&mut *db, &name, 4).await?,
                        }
                        ended.extend(get(&mut *db, began[0].id).await?);
                    }
                    Ok((ended, TransactionEnd::RollBack))
                })
            })
            .await;
        let ended = ended.expect("written");
        assert_eq!((ended[0].verdict, ended[0].finished_at), (Verdict::Pending, None), "{:?}", ended[0]);
        for (record, why) in
            ended[1..].iter().zip(["taken out", "another layout", "asked to stop", "forgotten"])
        {
            assert_eq!((record.verdict, record.finished_at), (Verdict::Failed, Some(4)), "{record:?}");
            assert!(record.error.as_ref().is_some_and(|error| error.contains(why)), "{record:?}");
        }
    }
}
