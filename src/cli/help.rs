//! The commands in `mps-manager --help`, in groups by task: nobody reads forty in one list.

use std::fmt::Write as _;

use clap::Command;

/// Each group with its commands, in the order in which they are shown.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Server", &["serve", "doctor", "record", "bootstrap", "kubelet-plugin", "config", "backup", "restore"]),
    ("Overview", &["status", "top", "incident", "events", "operation"]),
    (
        "Tenants and their processes",
        &["tenant", "run", "env", "verify", "client", "clients", "terminate", "lease"],
    ),
    ("Daemons and GPUs", &["daemon", "gpu", "host", "foreign", "maintenance"]),
    ("Host files and layouts", &["apply", "diff", "export", "layout", "replay"]),
    ("Access", &["context", "login-url", "whoami", "token", "session", "audit"]),
    ("Other", &["completions", "openapi", "cuda-probe", "sim", "version"]),
];

/// Changes the help of a command so that it lists the subcommands in groups.
pub(super) fn in_groups(command: Command) -> Command {
    let (heading, name) = (*command.get_styles().get_header(), *command.get_styles().get_literal());
    let width = command.get_subcommands().map(|member| member.get_name().len()).max().unwrap_or(0);
    let mut list = String::new();
    for (title, members) in GROUPS {
        let _ = writeln!(list, "{heading}{title}:{heading:#}");
        for member in members.iter().filter_map(|name| command.find_subcommand(name)) {
            let space = width - member.get_name().len();
            let _ = writeln!(list, "  {name}{}{name:#}{:space$}  {}", member.get_name(), "", summary(member));
        }
        list.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{heading}Options:{heading:#}\n{{options}}\n\n\
         `mps-manager help COMMAND` shows a command's options and examples.{{after-help}}"
    ))
}

/// Returns the summary of a command, without its exit codes, and its aliases.
fn summary(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut summary = about.split(';').next().unwrap_or_default().to_owned();
    for alias in command.get_visible_aliases() {
        let _ = write!(summary, " [alias: {alias}]");
    }
    summary
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, members)| members.iter().copied()).collect();
        let command = Cli::command();
        let mut shown: Vec<&str> =
            command.get_subcommands().filter(|member| !member.is_hide_set()).map(Command::get_name).collect();
        grouped.sort_unstable();
        shown.sort_unstable();
        assert_eq!(grouped, shown);
    }

    #[test]
    fn help_fits_100_columns() {
        let help = in_groups(Cli::command()).render_help().to_string();
        assert!(help.contains("Tenants and their processes:\n  tenant "), "{help}");
        assert!(
            help.contains("  clients         List clients: short for `client list` [alias: ps]\n"),
            "{help}"
        );
        assert!(!help.contains("exit 1"), "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
