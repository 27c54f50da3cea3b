//! Static partitions: synthetic, so these tests hold what this package decided and nothing that was seen.

use super::host::Host;
use crate::harness::TIMEOUT;

fn id(text: &str) -> String {
    text.split_whitespace().find(|word| word.starts_with("GPU-")).unwrap().to_owned()
}

#[test]
fn client_gets_and_holds_its_partition() {
    let host = Host::new("h200x1@13.1");
    host.start(&["-d", "-S"], &[]);
    let uuid = &host.uuids()[0];
    let name = host.ask(&format!("sm_partition add {uuid} 7")).trim().to_owned();
    assert!(name.starts_with(&format!("{uuid}/")));
    assert_eq!(host.see(&[])["error"], "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION");
    let client = host.busy_client(&["--spin", "60"], &[("CUDA_MPS_SM_PARTITION", name.as_str())]);
    assert_eq!(host.see(&[("CUDA_MPS_SM_PARTITION", name.as_str())])["devices"][0]["sms"], 56);
    assert_eq!(
        host.ask(&format!("sm_partition rm {name}")),
        format!("Partition {name} in use. Terminate all clients before removing.\n")
    );
    let short = &uuid[..12];
    let listed: Vec<Vec<String>> = host
        .ask("lspart")
        .lines()
        .skip(2)
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    let (_, local) = name.split_once('/').unwrap();
    assert_eq!(
        listed,
        [vec![short, "-", "8", "7", "76", "56", "-"], vec![short, local, "-", "7", "-", "56", "Yes"]]
    );
    client.signal(rustix::process::Signal::KILL);
    client.finish(TIMEOUT);
    crate::harness::eventually("it can be removed", || {
        host.ask(&format!("sm_partition rm {name}")).is_empty()
    });
}

#[test]
fn same_steps_and_die_give_same_ids() {
    let ids = |profile: &str| {
        let host = Host::new(profile);
        host.start(&["-d", "-S"], &[]);
        let steps = host.ask("sm_partition add 0 4\nsm_partition add 0 2\nsm_partition add 0 3");
        steps.lines().map(|line| id(line).split_once('/').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    let first = ids("h200x1@13.1");
    assert_eq!(first, ids("h200x1@13.1"));
    assert_ne!(first, ids("h200x1@13.1:gpcs=9.9.9.9.9.9.8.4"));
}

#[test]
fn version_13_2_has_other_replies() {
    let host = Host::new("h200x1@13.2");
    host.start(&["-d", "-S"], &[]);
    let uuid = &host.uuids()[0];
    let reply = host.ask("sm_partition add 0 10");
    assert!(reply.starts_with("Partition GPU-") && reply.ends_with(" created\n"), "{reply}");
    assert_eq!(host.ask("sm_partition add 0 20"), "Failed to create partition \n");
    let listed = host.ask("lspart");
    let rows: Vec<Vec<&str>> = listed.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    let name = id(&reply);
    let (_, local) = name.split_once('/').unwrap();
    assert_eq!(rows, [vec![&uuid[..6], "5", "10", "52", "80"], vec![&uuid[..6], local, "10", "80", "No"]]);
}

/// What others recorded on an L40S and an L20 (27), command by command. What stands at line ends is not known of all lines.
#[test]
fn recorded_partitions_are_replayed() {
    let recording = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/recordings/27-static-partitions-recorded-by-others.txt"
    ));
    let recording = recording.expect("recording 27");
    let block = |begin: &str| -> Vec<String> {
        let (_, rest) = recording.split_once(begin).unwrap();
        let lines = rest.lines().skip(1).take_while(|line| !line.starts_with(['$', '#']));
        lines.map(|line| line.trim_end().to_owned()).collect()
    };
    let host = Host::new("l40sx1@13.3");
    host.start(&["-d", "-S"], &[]);
    let uuid = host.uuids()[0].clone();
    let recorded_uuid = "GPU-203c2df2-d777-ba3e-e218-dfc79347f5a5";
    let said = |line: &str| -> Vec<String> {
        let reply = host.ask(line).replace(&uuid, recorded_uuid);
        reply.lines().map(|line| line.replace(&uuid[..6], "GPU-20").trim_end().to_owned()).collect()
    };
    assert_eq!(said("lspart"), block("$ lspart  "), "empty");
    let add = format!("$ sm_partition add {recorded_uuid} 1");
    assert_eq!(said(&format!("sm_partition add {uuid} 1")), block(&add));
    assert_eq!(said("lspart")[2..], block("AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA created\n$ lspart")[..]);
    let name = format!("{uuid}/AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    assert_eq!(
        said(&format!("sm_partition rm {name}")),
        ["Partition AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA removed"]
    );
    said(&format!("sm_partition add {uuid} 1"));
    said(&format!("sm_partition add {uuid} 2"));
    let both: Vec<String> = said("lspart")[2..].iter().map(|line| line.replace("No", "Yes")).collect();
    assert_eq!(both, block("both with clients; the newest first)"));
    assert_eq!(said(&format!("sm_partition add {uuid} 1000")), block(" 1000"));

    // The same two IDs on seven dies.
    let host = Host::new("l20x7@13.2");
    host.start(&["-d", "-S"], &[]);
    let ids = |gpu: usize| {
        [20, 3].map(|chunks| {
            let made = id(&host.ask(&format!("sm_partition add {gpu} {chunks}")));
            made.split_once('/').unwrap().1.to_owned()
        })
    };
    let recorded = ["////vm0fAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "AAAAQZIgAAAAAAAAAAAAAAAAAAAAAAAAAAAA"];
    for gpu in 0..7 {
        assert_eq!(ids(gpu), recorded, "GPU {gpu}");
    }
}

#[test]
fn client_names_one_partition_per_gpu() {
    let host = Host::new("h200x2@13.1");
    host.start(&["-d", "-S"], &[]);
    let first = id(&host.ask("sm_partition add 0 4"));
    let second = id(&host.ask("sm_partition add 1 2"));
    let both = format!("{first},{second}");
    let seen = host.see(&[("CUDA_MPS_SM_PARTITION", both.as_str())]);
    assert_eq!((&seen["devices"][0]["sms"], &seen["devices"][1]["sms"]), (&32.into(), &16.into()));
    let third = id(&host.ask("sm_partition add 0 2"));
    let twice = format!("{first},{third}");
    let refused = host.see(&[("CUDA_MPS_SM_PARTITION", twice.as_str()), ("CUDA_VISIBLE_DEVICES", "0")]);
    assert_eq!(refused["error"], "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "two partitions of one GPU");
    let (uuid, local) = third.split_once('/').unwrap();
    assert!(host.ask("lspart").contains(local));
    host.ask(&format!("sm_partition rm {uuid} {local}"));
    assert!(!host.ask("lspart").contains(local), "removed by UUID and ID in two words");
    let refused = host.see(&[("CUDA_MPS_SM_PARTITION", second.as_str()), ("CUDA_VISIBLE_DEVICES", "0")]);
    assert_eq!(refused["error"], "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION");
}
