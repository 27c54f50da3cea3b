//! Static partitions: synthetic, so these tests hold what this package decided and nothing that was seen.

use super::host::{DEADLINE, Host};

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
    client.finish(DEADLINE);
    super::host::eventually("it can be removed", || host.ask(&format!("sm_partition rm {name}")).is_empty());
}

#[test]
fn same_steps_and_die_give_same_ids() {
    let ids = |profile: &str| {
        let host = Host::new(profile);
        host.start(&["-d", "-S"], &[]);
        let steps = host.ask("sm_partition add 0 4\nsm_partition add 0 2\nsm_partition add 0 1");
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
    let too_many = "Failed to fulfill the requested SM partition of 20 chunks, error \
                    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n";
    assert_eq!(host.ask("sm_partition add 0 20"), too_many);
    let listed = host.ask("lspart");
    let rows: Vec<Vec<&str>> = listed.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    let name = id(&reply);
    let (_, local) = name.split_once('/').unwrap();
    assert_eq!(rows, [vec![&uuid[..12], "5", "10", "52", "80"], vec![&uuid[..12], local, "10", "80", "No"]]);
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
