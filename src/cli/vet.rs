//! Checks what `run` and `env` accept from a server: root may start the command, so the answer must not contain anything that
//! could take it over.

use std::collections::BTreeMap;

use crate::domain::environment::TENANT_HINT;
use crate::sim::world::WORLD_VARIABLE;

/// Most variables in a lease.
const COUNT: usize = 64;
/// Longest value in bytes: a host with all its GPUs and limits needs a twentieth of it.
const LENGTH: usize = 16 << 10;

/// The server that gave an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answerer {
    /// The process behind the unix socket, by its user.
    Socket(u32),
    /// A server at a URL.
    Url,
}

/// Refuses an answer that sets or unsets anything outside a tenant's environment.
pub(super) fn check_environment(set: &BTreeMap<String, String>, unset: &[String]) -> Result<(), String> {
    if set.len() > COUNT {
        return Err(refused(&format!("sets {} variables, but at most {COUNT} are accepted", set.len())));
    }
    for (name, value) in set {
        if !may_be_set(name) {
            return Err(refused(&format!(
                "sets {}, but only CUDA_MPS_*, CUDA_DEVICE_*, CUDA_VISIBLE_DEVICES and {TENANT_HINT} are accepted",
                shown(name)
            )));
        }
        if value.len() > LENGTH || value.contains('\0') {
            return Err(refused(&format!("sets {name} to a value that is too long, or has a null byte")));
        }
    }
    match unset.iter().find(|name| !may_be_unset(name)) {
        None => Ok(()),
        Some(name) => Err(refused(&format!(
            "unsets {}, but only CUDA_*, NVIDIA_* and MPS_MANAGER_* are accepted",
            shown(name)
        ))),
    }
}

/// Refuses a user that the server may not name: a server that is not root runs only processes of its own user.
///
/// `requested` is the user given by the caller.
pub(super) fn check_user(
    answerer: Answerer,
    uid: u32,
    own: u32,
    requested: Option<u32>,
) -> Result<(), String> {
    let right = match answerer {
        Answerer::Socket(0) => true,
        Answerer::Socket(server) => uid == server,
        // A caller that is not root cannot become another user.
        Answerer::Url => uid != 0 || own != 0 || requested == Some(0),
    };
    if right && uid != u32::MAX {
        return Ok(());
    }
    Err(match answerer {
        Answerer::Socket(server) => refused(&format!(
            "names uid {uid} as the tenant's user, but a manager of uid {server} can only have tenants of uid {server}"
        )),
        Answerer::Url => refused(&format!(
            "names uid {uid} as the tenant's user: give -u {uid} to run the command as that user"
        )),
    })
}

fn may_be_set(name: &str) -> bool {
    let mps = name.starts_with("CUDA_MPS_") || name.starts_with("CUDA_DEVICE_");
    (mps || ["CUDA_VISIBLE_DEVICES", TENANT_HINT, WORLD_VARIABLE].contains(&name)) && is_plain(name)
}

fn may_be_unset(name: &str) -> bool {
    ["CUDA_", "NVIDIA_", "MPS_MANAGER_"].iter().any(|prefix| name.starts_with(prefix)) && is_plain(name)
}

/// Returns true if a name consists of capital letters, digits and underscores, as those of CUDA's variables do.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// A name for display, with terminal control characters escaped.
fn shown(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_default).collect()
}

fn refused(fault: &str) -> String {
    format!("the server's answer is refused and not used: it {fault}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn only_a_tenants_variables_are_set() {
        for name in crate::domain::environment::MANAGED {
            check_environment(&set(name, "1"), &[]).expect("a tenant's");
            check_environment(&BTreeMap::new(), &[name.to_owned()]).expect("a tenant's");
        }
        for name in [TENANT_HINT, WORLD_VARIABLE] {
            check_environment(&set(name, "demo"), &[]).expect("the manager's own");
        }
        // The last ones load a library, and name where tools and kernels are found.
        for name in [
            "LD_PRELOAD",
            "PATH",
            "",
            "CUDA",
            "CUDA_MPS_\n",
            "cuda_mps_x",
            "CUDA_MPS_A=B",
            "MPS_MANAGER_TOKEN",
            "MPS_MANAGER_URL",
            "CUDA_INJECTION64_PATH",
            "CUDA_HOME",
            "CUDA_CACHE_PATH",
        ] {
            let message = check_environment(&set(name, "1"), &[]).expect_err(name);
            assert!(message.contains("refused and not used") && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn values_and_counts_are_bounded() {
        let name = "CUDA_MPS_PIPE_DIRECTORY";
        check_environment(&set(name, &"x".repeat(LENGTH)), &[]).expect("short enough");
        for value in ["x".repeat(LENGTH + 1), "a\0b".to_owned()] {
            check_environment(&set(name, &value), &[]).expect_err("too long");
        }
        let many: BTreeMap<_, _> = (0..=COUNT).map(|n| (format!("CUDA_MPS_{n}"), String::new())).collect();
        assert!(check_environment(&many, &[]).expect_err("too many").contains("65 variables"));
    }

    #[test]
    fn nothing_else_is_unset() {
        for name in ["CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "MPS_MANAGER_TOKEN"] {
            check_environment(&BTreeMap::new(), &[name.to_owned()]).expect("taken");
        }
        for name in ["PATH", "LD_LIBRARY_PATH", "CUDA_\u{1b}[31m"] {
            let message = check_environment(&BTreeMap::new(), &[name.to_owned()]).expect_err(name);
            assert!(!message.contains('\u{1b}'), "{message}");
        }
    }

    #[test]
    fn server_may_only_name_its_own_user() {
        use Answerer::{Socket, Url};
        for (answerer, uid, own, requested, right) in [
            (Socket(0), 7, 0, None, true),
            (Socket(0), 0, 0, None, true),
            (Socket(7), 7, 0, None, true),
            (Socket(7), 7, 7, None, true),
            (Socket(7), 0, 0, None, false),
            (Socket(7), 8, 0, Some(8), false),
            (Socket(0), u32::MAX, 0, None, false),
            (Url, 7, 0, None, true),
            (Url, 0, 0, None, false),
            (Url, 0, 0, Some(0), true),
            (Url, 0, 7, None, true),
        ] {
            assert_eq!(check_user(answerer, uid, own, requested).is_ok(), right, "{answerer:?} {uid} {own}");
        }
    }
}
