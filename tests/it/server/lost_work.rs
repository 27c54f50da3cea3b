//! Who lost work: what MPS reported at the time of a fault, and who was connected when a server died.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::log_pages::page;
use super::tokens::create;
use crate::harness::{Client, Host, Served, eventually, is_alive, setting, signal, stderr_of};

/// The first event of a type about a server, once it is reported.
fn reported(host: &Served, kind: &str, server: u32) -> Value {
    eventually(&format!("{kind} of server {server}"), || {
        let events = host.api().get(&format!("/api/v1/events?type={kind}&order=newest&limit=20")).ok();
        let of_it = |event: &&Value| event["subject"]["server"] == server;
        events["items"].as_array().expect("items").iter().find(of_it).cloned()
    })
}

/// The processes that an event names as having lost their work, with their tenants.
fn affected(event: &Value) -> Vec<(u64, String)> {
    let clients = event["details"]["clients"].as_array().unwrap_or_else(|| panic!("no clients: {event}"));
    let mut named: Vec<(u64, String)> = clients
        .iter()
        .map(|client| {
            (client["pid"].as_u64().expect("a PID"), client["tenant"].as_str().unwrap_or("?").to_owned())
        })
        .collect();
    named.sort();
    named
}

/// `MPS_MANAGER_KILLS` gives the kills for each number of clients.
#[test]
fn killed_server_event_names_all_its_clients() {
    let kills = setting("MPS_MANAGER_KILLS").unwrap_or(2);
    let host = Host::ready();
    for (name, clients) in [("left", 20), ("right", 20)] {
        let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "max_clients": clients});
        let written = host.api().tenant(name, &spec);
        assert_eq!(written.status, 201, "{}", written.text);
    }
    host.await_ready();
    for count in [1, 3, 20] {
        for kill in 0..kills {
            let mut clients: Vec<(Client, &str)> = Vec::new();
            for number in 0..count {
                let tenant = if number % 2 == 0 { "left" } else { "right" };
                let command = host.client_command(tenant, &["--spin", "600"]);
                clients.push((Client::start(command), tenant));
            }
            let mut pids: Vec<(u64, String)> =
                clients.iter().map(|(client, tenant)| (client.pid().into(), (*tenant).to_owned())).collect();
            pids.sort();
            eventually("all are listed", || {
                let listed = host.clients();
                pids.iter().all(|(pid, _)| listed.iter().any(|one| one["pid"] == *pid)).then_some(())
            });
            let server = host.server_pid("gpu0");
            signal(server, Signal::KILL);
            let died = reported(&host, "server.died", server);
            // These tenants share a user, so that the environment identifies the tenant of a client.
            assert_eq!(affected(&died), pids, "kill {kill} of {count}: {died}");
            for (client, _) in &mut clients {
                assert_eq!(client.ended().code(), Some(4), "kill {kill} of {count}");
            }
            eventually("each has left because of it", || {
                let left = host.api().get("/api/v1/events?type=client.left&order=newest&limit=60").ok();
                let left = left["items"].as_array().expect("items").clone();
                let because = left.iter().filter(|event| event["cause"]["id"] == died["id"]).count();
                (because == count).then_some(())
            });
            host.await_ready();
        }
    }
    let page = page(&host, "/incidents");
    assert!(page.contains("server died and was replaced"), "{page}");
}

/// The example of NVIDIA's documentation: A on 0, B on 0 and 1, C on 1, D on 2; A faults while C is stopped.
#[test]
fn fault_incident_follows_the_mps_log() {
    let mut host = Host::of("h200x8", "");
    host.serve();
    host.await_ready();
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    for gpu in 0..3 {
        host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/gpu{gpu}?grace_s=1")));
    }
    let put = host.api().put("/api/v1/daemons/trio", &json!({"gpus": ["0", "1", "2"]}));
    assert_eq!(put.status, 201, "{}", put.text);
    for (name, gpus) in
        [("t_a", json!(["0"])), ("t_b", json!(["0", "1"])), ("t_c", json!(["1"])), ("t_d", json!(["2"]))]
    {
        let spec =
            json!({"daemon": "trio", "uid": 0, "gpus": gpus, "device_memory_limit": "1G", "max_clients": 1});
        let written = host.api().tenant(name, &spec);
        assert_eq!(written.status, 201, "{}", written.text);
    }
    host.await_ready();
    let start = |tenant: &str, arguments: &[&str]| {
        let client = Client::start(host.client_command(tenant, arguments));
        assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
        host.listed(client.pid());
        client
    };
    let mut b = start("t_b", &["--spin", "600"]);
    let mut c = start("t_c", &["--spin", "600"]);
    let mut d = start("t_d", &["--spin", "8"]);
    c.signal(Signal::STOP);
    let server = host.server_pid("trio");
    let mut a = start("t_a", &["--spin", "600", "--fault-after", "3"]);

    let message = host.await_reason("trio", "ServerFault");
    let holder = format!("process {} is stopped: continue it (kill -CONT", c.pid());
    eventually("who holds the server is named", || {
        let fault = host.condition("trio", "ServerFault")?;
        let message = fault["message"].as_str().expect("text");
        (message.contains(&holder) && !message.contains("is still connected")).then_some(())
    });
    assert!(message.contains("fatal GPU error"), "{message}");
    let fault = reported(&host, "server.fault", server);
    let mut expected: Vec<(u64, String)> = [(&a, "t_a"), (&b, "t_b"), (&c, "t_c")]
        .map(|(client, tenant)| (client.pid().into(), tenant.to_owned()))
        .into();
    expected.sort();
    assert_eq!(affected(&fault), expected, "{fault}");
    a.ended();
    b.ended();
    let incident = super::incidents::incident(&host, "gpu_fault", |one| one["state"] == "open");
    assert_eq!(super::incidents::affected(&incident).len(), 3, "{incident}");
    let at = format!("/incidents/{}", incident["id"]);
    let open = page(&host, &at);
    assert!(
        open.contains("t_c") && open.contains("still connected") && open.contains("kill -CONT"),
        "{open}"
    );
    let affected = incident["affected"].as_array().expect("clients");
    let of_a = affected.iter().find(|one| one["pid"] == a.pid()).expect("A is among them");
    let gone = page(&host, &format!("/clients/{}", of_a["client"].as_str().expect("an ID")));
    assert!(gone.contains(&format!("href=\"{at}\"")) && gone.contains("/tenants/t_a"), "{gone}");
    // To tenants it is the same fault, and names nobody else.
    let tenant = host.api().get("/api/v1/tenants/t_d").ok();
    let ready = tenant["status"]["conditions"].as_array().expect("conditions").iter();
    assert!(ready.clone().any(|one| one["type"] == "Ready" && one["reason"] == "ServerFault"), "{tenant}");
    let own = host.api().with_token(Some(&create(&host, "d", "tenant:t_d")));
    let told_to_d = own.get("/api/v1/tenants/t_d").text;
    assert!(told_to_d.contains("ServerFault") && told_to_d.contains("fatal GPU error"), "{told_to_d}");
    assert!(!told_to_d.contains(&c.pid().to_string()), "{told_to_d}");
    assert_eq!(own.get("/api/v1/events?type=server.fault").ok()["items"], json!([]), "D lost nothing");
    own.get(&format!("/api/v1/events/{}", fault["id"])).problem(404, "not-found");
    let own = host.api().with_token(Some(&create(&host, "b", "tenant:t_b")));
    let events_of_b = own.get("/api/v1/events?type=server.fault").ok()["items"].clone();
    assert_eq!(events_of_b.as_array().expect("items").len(), 1, "{events_of_b}");
    assert_eq!(
        (&events_of_b[0]["id"], &events_of_b[0]["details"]),
        (&fault["id"], &json!(null)),
        "{events_of_b}"
    );
    assert!(!events_of_b.to_string().contains(&c.pid().to_string()), "{events_of_b}");
    let left = eventually("the journal says that B has left", || {
        own.get("/api/v1/events?type=client.left").ok()["items"].as_array().expect("items").first().cloned()
    });
    assert_eq!(left["cause"], json!({"by": "event", "id": fault["id"]}), "{left}");
    assert_eq!(own.get(&format!("/api/v1/events/{}", fault["id"])).ok(), events_of_b[0]);
    let refused = stderr_of(&host.run("t_a", &["true"]));
    assert!(refused.contains("fatal GPU error"), "{refused}");

    assert_eq!(d.ended().code(), Some(0), "its GPU is no part of it");
    c.signal(Signal::CONT);
    c.ended();
    reported(&host, "server.recovered", server);
    let left = eventually("D is reported to have left", || {
        let left = host.api().get("/api/v1/events?type=client.left&tenant=t_d").ok();
        left["items"].as_array().expect("items").first().cloned()
    });
    assert_eq!(left["cause"]["by"], "client", "{left}");
    let over = page(&host, &at);
    assert!(over.contains("t_c") && !over.contains("t_d"), "{over}");
    assert!(!over.contains("<strong>still connected"), "{over}");
}

#[test]
fn external_quit_is_attributed_to_its_caller() {
    let host = Host::ready();
    let daemon = host.daemon_pid("gpu0");
    // A caller is refused while the manager reads.
    eventually("the daemon has quit", || {
        host.control_once("gpu0", "quit -t 1\n");
        let until = Instant::now() + Duration::from_secs(3);
        while is_alive(daemon) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        (!is_alive(daemon)).then_some(())
    });
    let died = eventually("its death is reported", || {
        let events = host.api().get("/api/v1/events?type=daemon.died").ok();
        events["items"].as_array().expect("items").first().cloned()
    });
    assert_eq!(
        (&died["cause"]["by"], &died["details"]["pid"]),
        (&json!("outsider"), &json!(daemon)),
        "{died}"
    );
    host.await_ready();
    let failure = host.condition("gpu0", "LastFailure").expect("reported though it is ready again");
    let message = failure["message"].as_str().expect("text");
    assert_eq!(failure["reason"], "QuitByOthers", "{failure}");
    assert!(message.contains("quit -t 1") && message.lines().count() == 1, "{failure}");
    assert!(!message.contains("Starting control daemon"), "{failure}");
}
