//! History of tenants' use and of GPUs' vitals: periods of a minute for hours, and of ten minutes for days.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rows::execute;
use super::values::AsText;
use super::{Db, Result, to_json};
use crate::domain::history::{HistoryLine, HistoryPoint, Measure, STORED};
use crate::domain::{GpuUuid, TenantName};

/// A line and its point, as SQLite reads them from JSON.
#[derive(Serialize)]
struct Row<'p> {
    #[serde(flatten)]
    line: &'p HistoryLine,
    mean: f64,
    max: f64,
}

/// Adds the points of periods that ended at `at`, and drops periods that are too old.
pub async fn add(db: &mut Db, period_ms: i64, at: i64, points: &[(HistoryLine, HistoryPoint)]) -> Result<()> {
    let row = |(line, point): &(HistoryLine, HistoryPoint)| {
        to_json(&Row { line, mean: point.mean, max: point.max })
    };
    let rows = format!("[{}]", points.iter().map(row).collect::<Vec<_>>().join(","));
    // Rows of a tenant that was deleted meanwhile are left out.
    execute!(
        db,
        "INSERT INTO history_lines (tenant, gpu, measure, written_at)
         SELECT value ->> 'tenant', value ->> 'gpu', value ->> 'measure', ?2 FROM json_each(?1)
         WHERE value ->> 'tenant' IS NULL OR value ->> 'tenant' IN (SELECT name FROM tenants)
         ON CONFLICT (ifnull(tenant, ''), ifnull(gpu, ''), measure) DO UPDATE SET written_at = excluded.written_at
         WHERE excluded.written_at >= history_lines.written_at + 3600000",
        rows,
        at
    )?;
    execute!(
        db,
        "INSERT OR REPLACE INTO history_points (period_ms, at, line, mean, max)
         SELECT ?2, ?3, history_lines.id, value ->> 'mean', value ->> 'max' FROM json_each(?1) JOIN history_lines
         ON ifnull(history_lines.tenant, '') = ifnull(value ->> 'tenant', '') AND ifnull(history_lines.gpu, '') = ifnull(value ->> 'gpu', '')
         AND history_lines.measure = value ->> 'measure'",
        rows,
        period_ms,
        at
    )?;
    for (length, kept) in STORED {
        let oldest = at - kept;
        execute!(db, "DELETE FROM history_points WHERE period_ms = ? AND at <= ?", length, oldest)?;
    }
    let oldest = at - STORED.iter().map(|(_, kept)| kept).max().unwrap_or(&0) - 3_600_000;
    execute!(db, "DELETE FROM history_lines WHERE written_at <= ?", oldest)
}

/// Returns the lines of a tenant, of a GPU or of all, with their points of this period after a time, the oldest first.
pub async fn lines(
    db: &mut Db,
    (tenant, gpu): (Option<&TenantName>, Option<&GpuUuid>),
    period_ms: i64,
    after: i64,
) -> Result<BTreeMap<HistoryLine, Vec<HistoryPoint>>> {
    let (tenant, gpu) = (tenant.map(TenantName::as_str), gpu.map(GpuUuid::as_str));
    let query = sqlx::query!(
        r#"SELECT id, tenant AS "tenant: AsText<TenantName>", gpu AS "gpu: AsText<GpuUuid>", measure AS "measure: AsText<Measure>"
           FROM history_lines WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR gpu = ?2)"#,
        tenant,
        gpu
    );
    let line = query.map(|row| {
        let (tenant, gpu) = (row.tenant.map(|tenant| tenant.0), row.gpu.map(|gpu| gpu.0));
        (row.id, HistoryLine { tenant, gpu, measure: row.measure.0 })
    });
    let by_id: BTreeMap<i64, HistoryLine> = line.fetch_all(&mut *db).await?.into_iter().collect();
    let points = sqlx::query!(
        "SELECT line, at, mean, max FROM history_points WHERE period_ms = ?1 AND at > ?2 AND line IN
         (SELECT id FROM history_lines WHERE (?3 IS NULL OR tenant = ?3) AND (?4 IS NULL OR gpu = ?4)) ORDER BY at",
        period_ms,
        after,
        tenant,
        gpu
    );
    let mut lines: BTreeMap<HistoryLine, Vec<HistoryPoint>> = BTreeMap::new();
    for row in points.fetch_all(db).await? {
        let Some(line) = by_id.get(&row.line) else { continue };
        let point = HistoryPoint { at: row.at, mean: row.mean, max: row.max };
        match lines.get_mut(line) {
            Some(points) => points.push(point),
            None => {
                lines.insert(line.clone(), vec![point]);
            }
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::domain::history::{LINES, ended_periods};
    use crate::testing::h200;

    const MINUTE_MS: i64 = 60_000;
    const DAY_MS: i64 = 24 * 60 * MINUTE_MS;

    fn power(gpu: &str) -> HistoryLine {
        let gpu = GpuUuid::parse(gpu).expect("a UUID");
        HistoryLine { tenant: None, gpu: Some(gpu), measure: Measure::Power }
    }

    async fn open(directory: &tempfile::TempDir) -> Store {
        Store::open(&directory.path().join("test.db"), 0).await.expect("a store")
    }

    /// Adds a point to each of these lines.
    async fn put(store: &Store, period_ms: i64, at: i64, lines: &[HistoryLine]) {
        let point = |line: &HistoryLine| (line.clone(), HistoryPoint { at, mean: 1.5, max: 2.0 });
        let points: Vec<_> = lines.iter().map(point).collect();
        let added: Result<()> =
            store.commit(move |db| Box::pin(async move { add(db, period_ms, at, &points).await })).await;
        added.expect("added");
    }

    async fn count(store: &Store, query: &'static str) -> i64 {
        let mut reader = store.read().await.expect("a reader");
        sqlx::query_scalar(query).fetch_one(&mut *reader).await.expect("a number")
    }

    #[tokio::test]
    async fn points_survive_restart_and_end_with_tenant() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open(&directory).await;
        let gpu = h200(0).uuid;
        let of_gpu = power(gpu.as_str());
        let of = |tenant: &str| HistoryLine {
            tenant: Some(TenantName::parse(tenant).expect("a name")),
            gpu: Some(gpu.clone()),
            measure: Measure::Memory,
        };
        let setup: Result<()> = store
            .commit(|db| {
                Box::pin(async move {
                    let sql = "INSERT INTO daemons VALUES ('gpu0', '{}', 1, 1, 0, 0, 0);
                        INSERT INTO tenants (name, daemon, spec, generation, daemon_generation, created_at, updated_at, directory)
                        VALUES ('web', 'gpu0', '{}', 1, 1, 0, 0, '0123456789')";
                    Ok(sqlx::raw_sql(sql).execute(db).await.map(drop)?)
                })
            })
            .await;
        setup.expect("a tenant");
        put(&store, MINUTE_MS, MINUTE_MS, &[of("web"), of("gone"), of_gpu.clone()]).await;
        store.close().await;

        let store = open(&directory).await;
        let lines = async |of, after| {
            let mut reader = store.read().await.expect("a reader");
            super::lines(&mut reader, of, MINUTE_MS, after).await.expect("read")
        };
        let point = HistoryPoint { at: MINUTE_MS, mean: 1.5, max: 2.0 };
        let all = BTreeMap::from([(of_gpu.clone(), vec![point]), (of("web"), vec![point])]);
        assert_eq!(lines((None, Some(&gpu)), 0).await, all, "without the tenant that is not there");
        let web = of("web").tenant;
        assert_eq!(lines((web.as_ref(), None), 0).await.into_keys().collect::<Vec<_>>(), [of("web")]);
        assert!(lines((None, Some(&gpu)), MINUTE_MS).await.is_empty());
        let deleted: Result<()> =
            store.commit(|db| Box::pin(async move { execute!(db, "DELETE FROM tenants") })).await;
        deleted.expect("deleted");
        assert_eq!(lines((None, None), 0).await.into_keys().collect::<Vec<_>>(), [of_gpu]);
    }

    #[tokio::test]
    async fn stored_history_is_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open(&directory).await;
        let line = [power(h200(0).uuid.as_str())];
        // Nine days of a line, of which the first was written to no more.
        put(&store, 10 * MINUTE_MS, 10 * MINUTE_MS, &[power(h200(1).uuid.as_str())]).await;
        let mut before = 0;
        for now in (MINUTE_MS..=9 * DAY_MS).step_by(5 * 60_000) {
            for (period, end) in ended_periods(before, now) {
                put(&store, period, end, &line).await;
            }
            before = now;
        }
        let rows = count(&store, "SELECT count(*) FROM history_points").await;
        let most = STORED.iter().map(|(period, kept)| kept / period).sum::<i64>();
        assert!(rows <= most && rows > 7 * 144, "{rows} of {most}");
        assert_eq!(count(&store, "SELECT count(*) FROM history_lines").await, 1);

        // Bytes of a minute with as many lines as there can be, in one transaction.
        let uuid = |number| format!("GPU-00000000-0000-4000-8000-{number:012}");
        let lines: Vec<HistoryLine> = (0..LINES).map(|number| power(&uuid(number))).collect();
        put(&store, MINUTE_MS, 10 * DAY_MS, &lines).await;
        let bytes =
            count(&store, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()");
        let before = bytes.await;
        let commits = store.last_commit();
        for minute in 1..=20 {
            put(&store, MINUTE_MS, 10 * DAY_MS + minute * MINUTE_MS, &lines).await;
        }
        assert_eq!(store.last_commit() - commits, 40, "raised before and after each of 20");
        let bytes =
            count(&store, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()");
        let each = (bytes.await - before) / (20 * i64::try_from(LINES).expect("a number"));
        assert!(each <= 48, "{each} bytes for each point: the documented bound is exceeded");
    }
}
