//! Request bodies, queries and cursors at volume.

use std::fmt::Debug;

use axum::http::{HeaderValue, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::clients::ClientQuery;
use super::daemons::DrainQuery;
use super::events::last_event_id;
use super::layouts::ExportQuery;
use super::partitions::FreshPageQuery;
use super::tenants::TenantQuery;
use super::{FreshQuery, GraceQuery, PageQuery, WriteQuery};
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::GpuRef;
use crate::domain::maintenance::MaintenanceRequest;
use crate::domain::tenant::TenantSpec;
use crate::fuzz::{Inputs, values};
use crate::http::extract::{parse, parse_query};
use crate::http::problem::Problem;
use crate::service::daemons::adoption::AdoptRequest;
use crate::service::host::startup::ConfirmRequest;
use crate::service::layouts::LayoutRequest;
use crate::service::layouts::replays::ReplayRequest;
use crate::service::page::Page;
use crate::service::tenants::leases::LeaseRequest;

const WORDS: [&str; 26] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "true",
    "-",
    "1.5",
    "1e400",
    "\"gpus\"",
    "\"daemon\"",
    "\"steps\"",
    "\"add\"",
    "\"device_memory_limit\"",
    "\"4G\"",
    "\"active_thread_percentage\"",
    "\"labels\"",
    "\\u0000",
    "\\ud800",
    "\"mode\":\"static\"",
    "{\"a\":",
    "[[[[",
    "\"web\"",
];

/// A refusal is a problem document that says something and does not repeat all that came.
fn refused(problem: &Problem, length: usize) {
    let text = serde_json::to_string(problem).expect("JSON");
    assert!(text.len() <= 16 << 10, "{} bytes of problem for {length}", text.len());
    assert!((400..500).contains(&problem.status), "{text}");
}

/// Checks that a body of this type, once read, is equal after it was written and read again.
fn body<T: DeserializeOwned + Serialize + PartialEq + Debug>(samples: &[&str]) {
    Inputs::new(samples, &WORDS).check(|bytes| match parse::<T>(bytes) {
        Ok(value) => {
            let written = serde_json::to_vec(&value).expect("JSON");
            assert_eq!(parse::<T>(&written).expect("its own"), value);
            true
        }
        Err(problem) => {
            refused(&problem, bytes.len());
            false
        }
    });
}

#[test]
fn tenants() {
    body::<TenantSpec<GpuRef>>(&[
        r#"{"daemon":"gpu0","uid":1000,"gpus":["0"],"device_memory_limit":"4G","max_clients":2,"active_thread_percentage":33.3,"priority":"below_normal","labels":{"team":"a"}}"#,
        r#"{"daemon":"gpu0", "uid": 0,"sms":66}"#,
        r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":{"0":"1G","1":2147483648},"weight":3}"#,
    ]);
}

#[test]
fn daemons() {
    body::<DaemonSpec<GpuRef>>(&[
        r#"{"gpus":["GPU-514466a0-8e68-f857-9f73-e438010e48cb"],"mode":"static","multi_user":true,"schedulable":false,"defaults":{"device_memory_limit":4294967296,"active_thread_percentage":50}}"#,
        r#"{"gpus":["0"],"defaults":{"device_memory_limit":"0=1G"},"provisioning":{"strategy":"weighted","expected_clients":8}}"#,
        r#"{"gpus":["0","1"],"layout":{"name":"a","version":1,"gpu_map":{"0":"0"}}}"#,
    ]);
}

#[test]
fn layouts() {
    body::<LayoutRequest>(&[
        r#"{"layout":{"steps":[{"add":{"gpu":0,"partition":"big","chunks":7,"tenants":["web"]}},{"remove":{"partition":"big"}}]},"note":"n"}"#,
        r#"{"layout":{"steps":[],"enforcement":"percentage","sku":"NVIDIA H200"}}"#,
    ]);
}

#[test]
fn other_bodies() {
    let samples = [
        r#"{"pid":1234,"start_time":5678}"#,
        r#"{"id":"1234-5678"}"#,
        r#"{"daemon":"gpu0"}"#,
        r#"{"machine_id":"0123456789abcdef0123456789abcdef"}"#,
        r#"{"timeout_s":300,"on_timeout":"fail","reason":"driver"}"#,
        r#"{"daemon":"gpu0","document":{},"layout":"web","gpu_map":{"0":"0"}}"#,
        "{}",
    ];
    Inputs::new(samples, &WORDS).check(|bytes| {
        let mut taken = false;
        let mut one = |read: Result<(), Problem>| match read {
            Ok(()) => taken = true,
            Err(problem) => refused(&problem, bytes.len()),
        };
        one(parse::<AdoptRequest>(bytes).map(drop));
        one(parse::<LeaseRequest>(bytes).map(drop));
        one(parse::<MaintenanceRequest>(bytes).map(drop));
        one(parse::<ReplayRequest>(bytes).map(drop));
        one(parse::<ConfirmRequest>(bytes).map(drop));
        taken
    });
}

fn query<T: DeserializeOwned>(text: &str) -> bool {
    // What is no address at all never gets here.
    let Ok(uri) = format!("/api/v1/things?{text}").parse::<Uri>() else { return false };
    match parse_query::<T>(uri.query().unwrap_or_default()) {
        Ok(_) => true,
        Err(problem) => {
            refused(&problem, text.len());
            false
        }
    }
}

#[test]
fn queries() {
    let samples = [
        "cursor=YWJj&limit=10",
        "fresh=true",
        "dry_run=false&grace_s=3600",
        "timeout_s=300&on_timeout=fail",
        "daemon=gpu0&tenant=web&fresh=false",
        "daemon=web%5Fprod",
    ];
    let words = [
        "&", "=", "%", "%00", "%ff", "+", "dry_run", "grace_s", "limit", "true", "cursor", "daemon", ";",
        "[]",
    ];
    // The server takes no longer address.
    Inputs::new(samples, &words).at_most(16 << 10).check_text(|text| {
        let page = query::<PageQuery>(text) | query::<FreshPageQuery>(text);
        let write = query::<WriteQuery>(text) | query::<GraceQuery>(text) | query::<DrainQuery>(text);
        let read = query::<FreshQuery>(text) | query::<ClientQuery>(text) | query::<TenantQuery>(text);
        page | write | read | query::<ExportQuery>(text)
    });
}

#[test]
fn cursors() {
    Inputs::new(["YWJj", "Z3B1MA", ""], &["=", "-", "_", "A", "+", "/"]).check_text(
        |text| match Page::parse(Some(text), None) {
            Ok(page) => {
                let next =
                    page.cut(vec![(); 200], |()| page.after.clone()).next_cursor.expect("more to come");
                assert_eq!(Page::parse(Some(&next), None).expect("its own").after, page.after);
                assert_eq!(next, text, "two spellings of one cursor");
                true
            }
            Err(error) => {
                assert!(error.to_string().len() <= 1000);
                false
            }
        },
    );
}

#[test]
fn cursor_reads_back_as_its_key() {
    values("\\PC{0,60}", |key| {
        let first = Page::parse(None, Some(1)).expect("a page");
        let next = first.cut(vec![(), ()], |()| key.clone()).next_cursor.expect("more to come");
        assert_eq!(&Page::parse(Some(&next), None).expect("its own").after, key);
    });
}

#[test]
fn last_event_ids() {
    let samples = ["1", "9223372036854775807", " 17 ", "0"];
    Inputs::new(samples, &["1", "-", "+", " ", "\t", "0", "9223372036854775808"]).at_most(128 << 10).check(
        |bytes| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return false };
            match last_event_id(&value) {
                Ok(id) => {
                    let again = HeaderValue::from_str(&id.to_string()).expect("digits");
                    assert_eq!(last_event_id(&again).expect("its own"), id);
                    true
                }
                Err(error) => {
                    refused(&Problem::from(error), bytes.len());
                    false
                }
            }
        },
    );
}
