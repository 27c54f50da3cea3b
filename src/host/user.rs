//! Users and groups of this host; another user, for a process that is about to become or to start a command.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};

use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setuid};

/// Drops this process to a user with all of its groups; gives the variables that name the user.
///
/// Nothing changes where the process is that user already. Looks the user up, which may take as long as the host's
/// user database does; the error says what only root may do.
pub fn become_user(uid: u32) -> Result<BTreeMap<&'static str, OsString>, String> {
    let wanted = Uid::from_raw(uid);
    if Uid::effective() == wanted {
        return Ok(BTreeMap::new());
    }
    if !Uid::effective().is_root() {
        return Err(format!(
            "the tenant's processes run as uid {uid}, and only root may become another user: run this as root or as that user"
        ));
    }
    let user = User::from_uid(wanted).map_err(|error| error.to_string())?;
    let failed = |call: &str, error: nix::Error| format!("{call} for uid {uid} failed: {error}");
    let Some(user) = user else {
        // A user that this host has no name for, as in many containers: its group has the same number.
        nix::unistd::setgroups(&[]).map_err(|error| failed("setgroups", error))?;
        setgid(Gid::from_raw(uid)).map_err(|error| failed("setgid", error))?;
        setuid(wanted).map_err(|error| failed("setuid", error))?;
        return Ok(BTreeMap::new());
    };
    let name = CString::new(user.name.as_bytes()).map_err(|error| error.to_string())?;
    initgroups(&name, user.gid).map_err(|error| failed("initgroups", error))?;
    setgid(user.gid).map_err(|error| failed("setgid", error))?;
    setuid(wanted).map_err(|error| failed("setuid", error))?;
    let home = user.dir.into_os_string();
    Ok(BTreeMap::from([("HOME", home), ("USER", user.name.clone().into()), ("LOGNAME", user.name.into())]))
}

/// The number of a user by its name.
pub fn number_of_user(name: &str) -> Result<u32, String> {
    match User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("this host knows no user {name:?}: see the spelling, or give the number")),
        Err(error) => Err(format!("user {name:?} could not be resolved: {error}")),
    }
}

/// The name of a user by its number, if the host knows it.
pub fn name_of_user(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name)
}

/// The number of a group by its name.
pub fn number_of_group(name: &str) -> Result<u32, String> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!("this host knows no group {name:?}: see the spelling, or give the number")),
        Err(error) => Err(format!("group {name:?} could not be resolved: {error}")),
    }
}
