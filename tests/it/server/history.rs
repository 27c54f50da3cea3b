//! The history of tenants and GPUs: over a restart, in all spans, and with its incidents.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::gpus::uuid;
use super::log_pages::page;
use crate::harness::{Host, InProcess, eventually};

/// The points of a measure; of a tenant, or of a GPU without one.
fn points(history: &Value, measure: &str, tenant: Option<&str>) -> Vec<Value> {
    let series = history["series"].as_array().unwrap().iter();
    let mut series =
        series.filter(|series| series["measure"] == measure && series["tenant"] == json!(tenant));
    series.next().map(|series| series["points"].as_array().unwrap().clone()).unwrap_or_default()
}

#[test]
fn history_survives_a_restart() {
    let mut host = Host::ready();
    let client = host.client("demo");
    let (of_tenant, of_gpu) = ("/api/v1/tenants/demo/history", "/api/v1/gpus/0/history");
    let recorded = |host: &Host, path: &str, measure: &str, tenant: Option<&str>| {
        eventually("two points are recorded", || {
            let points = points(&host.api().get(path).ok(), measure, tenant);
            (points.len() > 2 && points[0]["max"].as_f64() > Some(0.0)).then_some(points)
        })
    };
    recorded(&host, of_tenant, "clients", Some("demo"));
    recorded(&host, of_gpu, "power", None);
    drop(client);
    host.end_manager(Signal::TERM);
    host.serve();
    host.await_ready();
    let served = host.api().get("/api/v1/host").ok();
    assert_eq!(served["read_only"], Value::Null);
    for (path, measure, tenant) in
        [(of_tenant, "clients", Some("demo")), (of_gpu, "memory", Some("demo")), (of_gpu, "power", None)]
    {
        for span in ["1h", "6h"] {
            let history = host.api().get(&format!("{path}?span={span}")).ok();
            let points = points(&history, measure, tenant);
            assert!(points.len() >= 2, "{span}: {history}");
            assert!(points[0]["max"].as_f64() > Some(0.0), "{span}: {history}");
        }
    }
    assert!(page(&host, "/gpus/0").contains("As a table"));
}

#[test]
fn spans_have_their_steps() {
    let host = Host::new("");
    // A database of the newest schema, with a week of one line.
    let mut host = {
        let mut host = host;
        host.serve();
        host.await_ready();
        host
    };
    let gpu = uuid(&host, 0);
    host.end_manager(Signal::TERM);
    host.execute_sql(&format!(
        "DELETE FROM history_points; DELETE FROM history_lines;
         INSERT INTO history_lines VALUES (7, NULL, '{gpu}', 'power', unixepoch() * 1000);
         WITH RECURSIVE steps (step) AS (SELECT 1 UNION ALL SELECT step + 1 FROM steps WHERE step < 1000)
         INSERT INTO history_points SELECT 600000, (unixepoch() / 600 - step) * 600000, 7, 100, 300 FROM steps;
         WITH RECURSIVE steps (step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM steps WHERE step < 300)
         INSERT INTO history_points SELECT 60000, (unixepoch() / 60 - step) * 60000, 7, 100, 300 FROM steps;"
    ));
    host.serve();
    host.await_ready();
    for (span, step, least, most) in
        [("1h", 5, 55, 70), ("6h", 60, 295, 310), ("24h", 600, 142, 148), ("7d", 3600, 165, 172)]
    {
        let history = host.api().get(&format!("/api/v1/gpus/0/history?span={span}")).ok();
        assert_eq!((&history["span"], &history["step_s"]), (&json!(span), &json!(step)));
        let points = points(&history, "power", None);
        assert!((least..=most).contains(&points.len()), "{span}: {} points", points.len());
        let times: Vec<_> = points.iter().map(|point| point["at"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
        let page = page(&host, &format!("/gpus/0?span={span}"));
        assert!(page.contains(&format!("aria-current=\"true\">{span}</a>")), "{span}");
        assert!(page.contains("No data yet"), "no tenant had a client");
    }
    host.api().get("/api/v1/gpus/0/history?span=2h").problem(422, "invalid-request");
    host.api().get("/api/v1/tenants/nobody/history").problem(404, "not-found");
}

#[test]
fn deleted_tenant_leaves_no_history() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let path = "/api/v1/tenants/demo/history";
    let has_client = || {
        let points = points(&host.api().get(path).ok(), "clients", Some("demo"));
        (points.len() > 1).then_some(())
    };
    eventually("it is recorded", has_client);
    drop(client);
    eventually("it has no client", || {
        let tenant = host.api().get("/api/v1/tenants/demo").ok();
        (tenant["status"]["clients"] == 0).then_some(())
    });
    assert_eq!(host.api().delete("/api/v1/tenants/demo").status, 204);
    host.api().get(path).problem(404, "not-found");
    let spec = json!({"daemon": "gpu0", "uid": 0});
    assert_eq!(host.api().tenant("demo", &spec).status, 201);
    assert_eq!(host.api().get(path).ok()["series"], json!([]));
}
