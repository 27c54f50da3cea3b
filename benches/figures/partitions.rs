//! Layouts of many partitions, over the API and beside shell scripts.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::host::TIMEOUT;
use crate::server::Server;
use crate::{Table, median, millis};

/// Fifteen partitions: over the API against a shell loop, and after the death of their daemon.
pub(crate) fn partitions(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start_as(directory, "h200x3@13.1");
    server.wait_ready();
    let [gpu, of_the_loop] = ["gpu1", "gpu2"].map(|name| server.in_static_mode(name));
    let steps: Vec<Value> = (0..15)
        .map(|number| json!({"add": {"gpu": 0, "partition": format!("p{number}"), "chunks": 1}}))
        .collect();
    server.put("/api/v1/layouts/full", &json!({"layout": {"steps": steps}}).to_string());
    server.put("/api/v1/layouts/nothing", &json!({"layout": {"steps": []}}).to_string());
    let full = json!({"daemon": "gpu1", "gpu_map": {"0": gpu}}).to_string();
    let nothing = json!({"daemon": "gpu1"}).to_string();

    let (mut applied, mut commands, mut looped, mut careful) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut broken = 0;
    let deadline = Instant::now() + 4 * TIMEOUT;
    // Side by side: whatever else the machine does, it does to both.
    while looped.len() < 20 || careful.len() < 20 {
        assert!(Instant::now() < deadline, "no loop makes its partitions");
        applied.push(server.operation("/api/v1/layouts/full/apply", &full));
        let (_, daemon) = server.get("/api/v1/daemons/gpu1");
        assert_eq!(daemon["status"]["layout"]["partitions"].as_array().map(Vec::len), Some(15));
        commands.push(daemon["status"]["layout"]["duration_us"].as_f64().expect("a time") / 1000.0);
        server.operation("/api/v1/layouts/nothing/apply", &nothing);
        for (lists, times) in [(false, &mut looped), (true, &mut careful)] {
            match shell_loop(&server, "gpu2", &of_the_loop, lists) {
                Some(took) => times.push(took),
                None => broken += 1,
            }
        }
    }
    let [applied, commands, looped, careful] = [applied, commands, looped, careful].map(median);
    table.row("a layout of 15 partitions applied over REST, from the request to its end, ms", applied, None);
    table.row("for comparison, a shell loop of a control process a command, ms", looped, None);
    table.row("of the REST request, the session that makes and lists each partition, ms", commands, None);
    table.row("for comparison, a shell loop that lists each too, ms", careful, None);
    table.row("REST as a part of that, %", 100.0 * applied / careful, Some(150.0));
    table.row("the session as a part of that, %", 100.0 * commands / careful, None);
    table.row("loops of which a command was turned away and nothing said so", f64::from(broken), None);

    server.operation("/api/v1/layouts/full/apply", &full);
    let ids = || {
        let (_, body) = server.get("/api/v1/daemons/gpu1");
        let partitions = body["status"]["layout"]["partitions"].as_array().expect("partitions").clone();
        partitions.iter().map(|one| one["id"].as_str().expect("an ID").to_owned()).collect::<Vec<_>>()
    };
    let before = ids();
    assert_eq!(before.len(), 15);
    let mut differ = 0;
    let deaths: Vec<f64> = (0..20)
        .map(|_| {
            let took = server.kill_daemon_and_wait("gpu1");
            differ += i32::from(ids() != before);
            took
        })
        .collect();
    let longest = deaths.iter().copied().fold(0.0, f64::max);
    table.row(
        "kill -9 of a static daemon with 15 partitions to ready, ms (simulated)",
        median(deaths),
        Some(1000.0),
    );
    table.row("the same: the longest of 20, ms", longest, Some(1000.0));
    table.row("the same: deaths after which an ID was another", f64::from(differ), Some(0.0));
}

/// Makes fifteen partitions of one chunk as a script does, and takes them away again; milliseconds that the making took, or
/// nothing where not all of them were made.
fn shell_loop(server: &Server, daemon: &str, gpu: &str, lists: bool) -> Option<f64> {
    const PARTITIONS: usize = 15;
    let list = if lists { "echo lspart | \"$0\" >/dev/null;" } else { "" };
    let script = format!("for i in $(seq {PARTITIONS}); do echo sm_partition add $1 1 | \"$0\"; {list} done");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(server.control_path()).arg(gpu);
    shell.env("CUDA_MPS_PIPE_DIRECTORY", server.pipe_directory(daemon)).stderr(Stdio::null());
    let began = Instant::now();
    let output = shell.output().expect("a shell");
    let took = millis(began.elapsed());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let made: Vec<&str> = text.lines().filter(|line| line.starts_with("GPU-")).collect();
    let removals: Vec<String> = made.iter().map(|name| format!("sm_partition rm {name}")).collect();
    let removed = || {
        let mut child = server.control_program(daemon).spawn().expect("it starts");
        let _ = child
            .stdin
            .take()
            .expect("piped")
            .write_all(format!("{}\nlspart\n", removals.join("\n")).as_bytes());
        let listed = child.wait_with_output().expect("it ends").stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        listed.contains("GPU-") && made.iter().all(|name| !listed.contains(&name[name.len() - 36..]))
    };
    let deadline = Instant::now() + TIMEOUT;
    while !removed() {
        assert!(Instant::now() < deadline, "the partitions of the loop stay");
    }
    (made.len() == PARTITIONS).then_some(took)
}
