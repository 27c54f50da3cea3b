//! CDI specifications: the files by which container engines find the devices that they are asked for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Where container engines find them.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Makes a specification with a device for each GPU, by index and by UUID; older toolkits take the last one alone.
pub const GENERATE: &str = "nvidia-ctk cdi generate --device-name-strategy=index --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml";

/// Every specification in these directories that can be read.
pub fn specifications(directories: &[PathBuf]) -> Vec<(PathBuf, Value)> {
    let entries =
        directories.iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten());
    entries.filter_map(|entry| Some((entry.path(), read(&entry.path())?))).collect()
}

/// A specification; `None` for what is none, or cannot be read.
fn read(path: &Path) -> Option<Value> {
    let extension = path.extension()?.to_str()?;
    let text = fs::read_to_string(path).ok()?;
    match extension {
        "json" => serde_json::from_str(&text).ok(),
        "yaml" | "yml" => serde_saphyr::from_str(&text).ok(),
        _ => None,
    }
}

/// The devices of a kind, as `all` and `GPU-…` of `nvidia.com/gpu`; `None` where no specification is of that kind.
pub fn devices(specifications: &[(PathBuf, Value)], kind: &str) -> Option<BTreeSet<String>> {
    let matching = specifications.iter().filter(|(_, specification)| specification["kind"] == kind);
    let names = |(_, specification): &(PathBuf, Value)| {
        let devices = specification["devices"].as_array().cloned().unwrap_or_default();
        devices
            .into_iter()
            .filter_map(|device| device["name"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let devices: Vec<Vec<String>> = matching.map(names).collect();
    (!devices.is_empty()).then(|| devices.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_from_every_form() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
        let listed = || devices(&specifications(&[directory.path().to_owned()]), "nvidia.com/gpu");
        assert_eq!(listed(), None);
        write("other.json", r#"{"kind": "mps-manager.dev/tenant", "devices": [{"name": "web"}]}"#);
        write("broken.json", "{");
        write("readme.txt", "kind: nvidia.com/gpu");
        assert_eq!(listed(), None);
        write("nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n");
        write("more.json", r#"{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-1"}]}"#);
        assert_eq!(listed(), Some(["GPU-1", "all"].map(str::to_owned).into()));
    }
}
