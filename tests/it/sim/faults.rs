//! The ceiling on clients, and what a client does that cannot have what it wants.

use super::host::{Busy, DEADLINE, Host, eventually};

/// Fills a GPU with clients; returns how many got in and the last one's words.
fn fill(host: &Host) -> (usize, String) {
    let mut clients = Vec::new();
    loop {
        let mut client = Busy::spawn(&mut host.client_command(&["--spin", "60", "--gpus", "0"], &[]));
        eventually("the client got in or not", || {
            let text = client.output().0;
            text.contains("SM ") || text.contains("_UNAVAILABLE")
        });
        if !client.running() || client.output().0.contains("_UNAVAILABLE") {
            let count = clients.len();
            let done = client.finish(DEADLINE);
            assert_eq!(done.rc, 3);
            for client in clients {
                let client: Busy = client;
                client.signal(rustix::process::Signal::KILL);
                client.finish(DEADLINE);
            }
            return (count, done.stdout);
        }
        clients.push(client);
    }
}

#[test]
fn a_device_takes_48_clients_on_13_0() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let (count, message) = fill(&host);
    assert_eq!(count, 48);
    assert!(
        message.ends_with("cuDevicePrimaryCtxRetain(&ctx,d) -> CUDA_ERROR_DEVICE_UNAVAILABLE\n"),
        "{message}"
    );
    assert!(
        host.log("server.log")
            .contains("Failed to accept new client. Maximum number of clients (48) reached.")
    );
}

#[test]
fn client_ceiling_depends_on_version_and_gpu() {
    for (profile, ceiling) in [("h200x1@13.1", 60), ("p100x1@12.8", 16)] {
        let host = Host::new(profile);
        host.start(&["-d"], &[]);
        assert_eq!(fill(&host).0, ceiling, "{profile}");
    }
}

#[test]
fn exclusive_mode_stops_a_client_outside_mps() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    host.server();
    let mode = host.world.dir().join("gpus").join(&host.uuids()[0]).join("compute_mode");
    let outside = [("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")];
    assert_eq!(host.see(&outside)["mps"], false);
    std::fs::write(&mode, "exclusive_process\n").unwrap();
    assert_eq!(host.see(&outside)["error"], "CUDA_ERROR_DEVICE_UNAVAILABLE");
    assert_eq!(host.see(&[])["mps"], true);
}
