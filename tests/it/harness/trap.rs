//! The control program with a trap in it: the session that sends the nth `sm_partition` loses its reply, or hangs; or the
//! manager is killed at the nth command about partitions.

use std::fs;
use std::path::PathBuf;

use super::scratch::{directory, install_script};
use super::{Served, eventually};

/// Programs in a directory of their own, which the manager uses in place of the simulated host's.
pub(crate) struct Trap {
    dir: tempfile::TempDir,
}

/// What happens at the command that springs the trap.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spring {
    /// The session dies before the daemon receives it.
    Unheard,
    /// The session dies once the daemon has it.
    Unanswered,
    /// The daemon has it, and the session stands still until it is released.
    Held,
    /// The manager dies before the daemon receives the command, any about partitions, counted through all sessions.
    FatalBefore,
    /// The manager dies once the daemon has it.
    FatalAfter,
}

impl Trap {
    pub(crate) fn new() -> Self {
        Self { dir: directory("t") }
    }

    /// What the manager's configuration needs to say.
    pub(crate) fn config(&self) -> String {
        format!("mps_dir = \"{}\"", self.dir.path().display())
    }

    /// Writes the programs for this host, which has not been served yet.
    pub(crate) fn install(&self, host: &Served) {
        for (name, script) in [
            ("nvidia-cuda-mps-control", CONTROL),
            ("nvidia-cuda-mps-server", "#!/bin/sh\nexec '{real}' \"$@\"\n"),
        ] {
            let real = host.runtime("sim/bin").join(name);
            let path = self.dir.path().join(name);
            install_script(&path, &script.replace("{real}", real.to_str().expect("text")));
        }
    }

    /// Has no control daemon start from now on.
    pub(crate) fn refuse_starts(&self) {
        let path = self.dir.path().join("nvidia-cuda-mps-control");
        let script = fs::read_to_string(&path).expect("installed");
        let refusing = script.replacen('\n', "\n[ $# = 0 ] || { echo 'out of order' >&2; exit 1; }\n", 1);
        install_script(&self.file("new"), &refusing);
        fs::rename(self.file("new"), path).expect("replaced");
    }

    /// Sets it for the nth addition of a session, counted from 1.
    pub(crate) fn set(&self, spring: Spring, nth: usize) {
        self.set_for("add", spring, nth);
    }

    /// Sets it for the nth `sm_partition` of a session whose words begin so.
    pub(crate) fn set_for(&self, words: &str, spring: Spring, nth: usize) {
        let word = format!("{spring:?}").to_lowercase();
        self.clear();
        fs::write(self.file("new"), format!("{word} {nth} {words}\n")).expect("written");
        fs::rename(self.file("new"), self.file("trap")).expect("set");
    }

    /// Takes it away.
    pub(crate) fn clear(&self) {
        for old in ["trap", "sprung", "free", "count"] {
            let _ = fs::remove_file(self.file(old));
        }
    }

    /// Waits until it has sprung.
    pub(crate) fn sprung(&self) {
        eventually("the trap springs", || self.file("sprung").exists().then_some(()));
    }

    /// Releases the session that stands still.
    pub(crate) fn release(&self) {
        fs::write(self.file("free"), "").expect("written");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

const CONTROL: &str = r#"#!/bin/sh
here=${0%/*}
[ $# = 0 ] && [ -e "$here/trap" ] || exec '{real}' "$@"
read -r spring nth words 2>/dev/null <"$here/trap" || exec '{real}'
log=$CUDA_MPS_PIPE_DIRECTORY/../log/control.log
pipe=$here/pipe.$$
mkfifo "$pipe"
'{real}' <"$pipe" &
child=$!
exec 3>"$pipe"
rm "$pipe"
count=0
while IFS= read -r line; do
    case $spring,$line in
        fatal*,lspart* | fatal*,sm_partition*)
            count=$(($(cat "$here/count" 2>/dev/null || echo 0) + 1))
            echo "$count" >"$here/count"
            ;;
        fatal*) ;;
        *,"sm_partition $words"*) count=$((count + 1)) ;;
    esac
    if [ "$count" = "$nth" ] && [ -e "$here/trap" ]; then
        rm -f "$here/trap"
        had=$(grep -cF "Cmd:$line" "$log")
        case $spring in
            unheard | fatalbefore) ;;
            *)
                printf '%s\n' "$line" >&3
                until [ "$(grep -cF "Cmd:$line" "$log")" -gt "$had" ]; do sleep 0.01; done
                ;;
        esac
        : >"$here/sprung"
        case $spring,$(tr '\0' ' ' <"/proc/$PPID/cmdline") in fatal*,*" serve "*) kill -9 "$PPID" ;; esac
        while [ "$spring" = held ] && [ ! -e "$here/free" ]; do sleep 0.01; done
        kill -9 "$child" $$
    fi
    printf '%s\n' "$line" >&3
done
exec 3>&-
wait "$child"
"#;
