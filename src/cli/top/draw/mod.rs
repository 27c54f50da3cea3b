//! The lines of `top` for a size of the terminal.

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};
use unicode_width::UnicodeWidthStr as _;

use super::state::{TopState, memory};
use crate::cli::nouns::tenant_of;
use crate::cli::output::{CellColour, ListField, ListLayout, TableCell, age, word};
use crate::cli::status::{attention, names};
use crate::domain::count::counted;
use crate::domain::incident::IncidentState;
use crate::domain::memory::Bytes;
use crate::domain::printable::printable;
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;
use crate::service::incidents::IncidentView;
use crate::service::tenants::TenantView;
use crate::service::tenants::clients::ClientView;
use crate::words::tenant::{self as words, MARK, has_mark};

/// Smallest width at which the bars of a GPU are on one line.
const WIDE: usize = 80;
/// Smallest width at which that line has room for the GPU's name too.
const ONE_LINE: usize = 110;
/// The longest bar.
const LONGEST_BAR: usize = 40;
/// Messages that are shown at most, so that the tables stay in sight.
const MESSAGES: usize = 4;

type TenantField = ListField<TenantView>;

static TENANTS: ListLayout<TenantView> = ListLayout {
    noun: "tenants",
    name: |tenant| tenant.name.to_string(),
    fields: &[
        TenantField::column("TENANT", |tenant| {
            words::with_workload(&tenant.name, tenant.workload.as_ref()).into()
        })
        .cut(),
        TenantField::column("DAEMON", |tenant| tenant.spec.daemon.as_str().into()).cut().rank(1),
        TenantField::column("READY", |tenant| TableCell::ready(&tenant.status.conditions)),
        TenantField::column("CLIENTS", |tenant| words::clients(tenant).into()),
        TenantField::column("MEM LIMIT", |tenant| {
            TableCell::optional(tenant.status.effective.as_ref().map(words::memory))
        }),
        TenantField::column("SMS", |tenant| TableCell::optional(words::share(tenant))).cut().rank(2),
    ],
};

type ClientField = ListField<ClientView>;

static CLIENTS: ListLayout<ClientView> = ListLayout {
    noun: "clients",
    name: |client| client.id.to_string(),
    fields: &[
        ClientField::column("PID", |client| client.pid.to_string().into()),
        ClientField::column("TENANT", |client| TableCell::optional(tenant_of(client))).cut(),
        ClientField::column("DAEMON", |client| client.daemon.as_str().into()).cut().rank(1),
        ClientField::column("MEMORY", |client| Bytes(memory(client)).to_string().into()),
        ClientField::column("AGE", |client| age(client.since).into()).rank(2),
        ClientField::column("COMMAND", |client| client.command.as_str().into()).cut().rank(3),
    ],
};

/// All lines, as many as the terminal has: the first names the host, the last the keys.
pub(super) fn lines(state: &TopState, width: usize, height: usize) -> Vec<Line<'static>> {
    let body = if state.shows_help { help() } else { body(state, width) };
    let room = height.saturating_sub(2);
    // Scrolling ends where the last line is on the screen.
    let first = state.scrolled.min(body.len().saturating_sub(room));
    let mut lines = vec![heading(state, width)];
    let below = body.len().saturating_sub(first + room);
    lines.extend(body.into_iter().skip(first).take(room));
    if below > 0 && room > 0 {
        let text = format!("… {} more lines: scroll down", below + 1);
        lines[room] = Line::styled(cut(&text, width), faint());
    }
    lines.resize(height.saturating_sub(1).max(1), Line::default());
    lines.push(footer(state, width));
    lines
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn style(colour: CellColour) -> Style {
    match colour {
        CellColour::Plain => Style::new(),
        CellColour::Good => Style::new().fg(Color::Green),
        CellColour::Warning => Style::new().fg(Color::Yellow),
        CellColour::Bad => Style::new().fg(Color::Red),
        CellColour::Faint => faint(),
    }
}

/// Text of any origin, made harmless and cut to a width.
fn cut(text: &str, width: usize) -> String {
    TableCell::from(text).cut(width).into_owned()
}

fn heading(state: &TopState, width: usize) -> Line<'static> {
    let host = &state.data.host.host;
    let simulated = if host.simulated { "  SIMULATED" } else { "" };
    let text = format!(
        "{}{simulated}  {}  {}  {}",
        host.hostname,
        counted(host.gpus, "GPU"),
        counted(state.data.clients.len(), "client"),
        host.software()
    );
    Line::styled(cut(&text, width), bold())
}

fn footer(state: &TopState, width: usize) -> Line<'static> {
    if let Some(why) = &state.stale {
        return Line::styled(cut(&format!("not updated: {why}"), width), Style::new().fg(Color::Red));
    }
    Line::styled(cut(&format!("q quit  s sort ({})  ? help", state.order.as_str()), width), faint())
}

fn help() -> Vec<Line<'static>> {
    let lines = [
        "",
        "q, Esc, Ctrl-C   quit",
        "s                sort clients by memory,",
        "                 age, tenant or PID",
        "Up, Down         scroll by a line",
        "PgUp, PgDn       scroll by ten lines",
        "Home             scroll to the top",
        "? or Esc         close this help",
    ];
    lines.into_iter().map(Line::from).collect()
}

fn body(state: &TopState, width: usize) -> Vec<Line<'static>> {
    let host = &state.data.host;
    let mut lines = vec![Line::default()];
    let attention = attention(host);
    for item in attention.iter().take(MESSAGES) {
        let text = format!("! {}: {}", names(item), printable(item.message));
        lines.push(Line::styled(cut(&text, width), Style::new().fg(Color::Red)));
    }
    if attention.len() > MESSAGES {
        let text = format!("! {} more: mps-manager status", attention.len() - MESSAGES);
        lines.push(Line::styled(cut(&text, width), Style::new().fg(Color::Red)));
    }
    let mut incidents: Vec<&IncidentView> = host.incidents.iter().collect();
    // Those that are open first: the others may be newer.
    incidents.sort_by_key(|incident| incident.state != IncidentState::Open);
    for incident in incidents.iter().take(MESSAGES) {
        let is_open = incident.state == IncidentState::Open;
        let text = format!("! incident {}: {}", incident.id, printable(&incident.summary));
        let colour = if is_open { Color::Red } else { Color::Yellow };
        lines.push(Line::styled(cut(&text, width), Style::new().fg(colour)));
    }
    if incidents.len() > MESSAGES {
        let more = counted(incidents.len() - MESSAGES, "incident");
        let text = format!("! {more} more: mps-manager incident list");
        lines.push(Line::styled(cut(&text, width), Style::new().fg(Color::Red)));
    }
    if !attention.is_empty() || !incidents.is_empty() {
        lines.push(Line::default());
    }
    for gpu in &host.gpus {
        lines.extend(gpu_lines(gpu, &host.daemons, &host.tenants, width));
    }
    lines.push(Line::default());
    lines.extend(table(&TENANTS, &host.tenants, width));
    if has_mark(&host.tenants) {
        lines.push(Line::styled(cut(MARK, width), faint()));
    }
    lines.push(Line::default());
    lines.extend(table(&CLIENTS, &state.data.clients, width));
    lines
}

fn table<T>(layout: &ListLayout<T>, items: &[T], width: usize) -> Vec<Line<'static>> {
    if items.is_empty() {
        return vec![Line::styled(cut(&format!("No {}.", layout.noun), width), faint())];
    }
    let (rows, widths) = layout.grid(items, width);
    let line = |(number, row): (usize, &Vec<TableCell>)| {
        let mut spans = Vec::new();
        let mut gap = 0;
        for (cell, width) in row.iter().zip(&widths) {
            let text = cell.cut(*width).into_owned();
            spans.push(Span::raw(" ".repeat(gap)));
            gap = width.saturating_sub(text.width()) + 2;
            spans.push(Span::styled(text, if number == 0 { bold() } else { style(cell.colour()) }));
        }
        Line::from(spans)
    };
    rows.iter().enumerate().map(line).collect()
}

/// A GPU with bars for the SMs of its tenants and for its memory: in one line, or in two or three of a narrow terminal.
fn gpu_lines(
    gpu: &GpuView,
    daemons: &[DaemonView],
    tenants: &[TenantView],
    width: usize,
) -> Vec<Line<'static>> {
    let daemon = daemons.iter().find(|daemon| daemon.spec.gpus.contains(&gpu.uuid.whole()));
    let index = gpu.place().map_or_else(|| "?".to_owned(), |index| index.to_string());
    let name = gpu.name.as_deref().unwrap_or("unknown GPU").trim_start_matches("NVIDIA ");
    let phase = daemon.and_then(|daemon| daemon.status.as_ref()).map(|status| word(status.phase));
    let phase = TableCell::state(phase.as_deref().unwrap_or("-"));
    let daemon_name = daemon.map_or("no daemon", |daemon| daemon.name.as_str());
    let sms = sms_of(gpu, tenants);
    let sms_text = format!("SM limits {sms}/{}", gpu.sms.unwrap_or(0));
    let shown = |bytes: Option<u64>| Bytes(bytes.unwrap_or(0)).to_string();
    let memory_text = format!("{} of {}", shown(gpu.memory_used), shown(gpu.memory_total));
    let title = |width: usize| {
        let text = cut(&format!("GPU {index:<2}  {daemon_name}  {name}"), width.saturating_sub(2));
        vec![
            Span::styled(format!("{text:<width$}"), bold()),
            Span::styled(phase.cut(10).into_owned(), style(phase.colour())),
        ]
    };
    let sm_share = share_of(u64::from(sms), u64::from(gpu.sms.unwrap_or(0)));
    let memory_share = share_of(gpu.memory_used.unwrap_or(0), gpu.memory_total.unwrap_or(0));
    if width < WIDE {
        let bar_width = |text: &str| width.saturating_sub(text.width() + 5).min(LONGEST_BAR);
        let sm_bar = bar(sm_share, bar_width(&sms_text));
        let memory_bar = bar(memory_share, bar_width(&memory_text));
        return vec![
            Line::from(title(width.saturating_sub(10))),
            Line::from(format!("  {sm_bar} {sms_text}")),
            Line::from(format!("  {memory_bar} {memory_text}")),
        ];
    }
    let is_one_line = width >= ONE_LINE;
    // The bars begin in the same column for each GPU.
    let titled: usize = if is_one_line { 34 } else { 1 };
    let mut spans = if is_one_line { title(titled - 10) } else { Vec::new() };
    let used: usize = spans.iter().map(Span::width).sum();
    spans.push(Span::raw(" ".repeat(titled.saturating_sub(used) + 1)));
    let texts = sms_text.width().max(17) + memory_text.width().max(23) + 8;
    let bar_width = (width.saturating_sub(titled + 1 + texts) / 2).clamp(4, LONGEST_BAR);
    let rest = format!(
        "{} {sms_text:<17}  {} {memory_text}",
        bar(sm_share, bar_width),
        bar(memory_share, bar_width)
    );
    spans.push(Span::raw(cut(&rest, width.saturating_sub(titled + 1))));
    if is_one_line {
        return vec![Line::from(spans)];
    }
    vec![Line::from(title(width.saturating_sub(10))), Line::from(spans)]
}

/// SMs that tenants see of a GPU: of partitions the sum, of percentages the sum too, which may be more than the GPU has.
fn sms_of(gpu: &GpuView, tenants: &[TenantView]) -> u32 {
    let on_it = tenants.iter().filter(|tenant| tenant.status.gpus.contains(&gpu.uuid));
    let threads =
        on_it.filter_map(|tenant| tenant.status.effective.as_ref()).map(|effective| &effective.threads);
    threads
        .map(|threads| {
            let own =
                threads.partitions.iter().filter(|part| part.gpu == gpu.uuid).map(|part| part.sms).sum();
            if threads.partitions.is_empty() { threads.predicted_sms.unwrap_or(0) } else { own }
        })
        .sum()
}

/// Thousandths of a whole, at most all of it.
fn share_of(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        0
    } else {
        (u128::from(part) * 1000 / u128::from(whole)).min(1000).try_into().unwrap_or(1000)
    }
}

fn bar(thousandths: u64, width: usize) -> String {
    let whole = u64::try_from(width).unwrap_or(0);
    let filled = usize::try_from((thousandths * whole).div_ceil(1000)).unwrap_or(0).min(width);
    format!("[{}{}]", "█".repeat(filled), "░".repeat(width - filled))
}

#[cfg(test)]
mod tests;
