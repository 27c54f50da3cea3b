//! Ends incidents when an event shows that they are over.

use super::grouping::Grouping;
use super::{Incident, IncidentEnd, IncidentKind, IncidentTopic};
use crate::event::{DomainEvent, MemoryBreach};

impl Grouping<'_> {
    /// Takes an event after which something works again or is no longer there.
    pub(super) fn ending(&mut self) {
        use IncidentEnd::{Recovered, Replaced, Stopped};
        use IncidentKind as Kind;
        match self.seen.event {
            DomainEvent::DaemonReady { .. } | DomainEvent::DaemonObserved { .. } => {
                self.end(Recovered, |open| {
                    (open.kind.loses_work() && open.kind != Kind::GpuMissing)
                        || open.kind == Kind::NoServer
                        || (open.kind == Kind::Drift && open.topic == IncidentTopic::Settings)
                });
            }
            DomainEvent::ServerStarted { pid, .. } => self.end(Recovered, |open| match &open.topic {
                IncidentTopic::Server { pid: faulty } => faulty != pid,
                _ => false,
            }),
            DomainEvent::ServerRecovered { pid, .. } => {
                self.end(Recovered, |open| open.topic == IncidentTopic::Server { pid: *pid });
            }
            DomainEvent::SettingsRepaired { .. } | DomainEvent::SettingsApplied { .. } => {
                self.end(Recovered, |open| open.topic == IncidentTopic::Settings);
            }
            DomainEvent::LayoutRepaired(_) => {
                self.end(Recovered, |open| open.kind == Kind::Drift && open.topic == IncidentTopic::Layout);
            }
            DomainEvent::LayoutApplied(_) => {
                self.end(Recovered, |open| open.topic == IncidentTopic::Layout);
            }
            DomainEvent::BypassEnded { .. } => self.end(Recovered, |open| open.kind == Kind::Bypass),
            DomainEvent::ExposureEnded { .. } => {
                self.end(Recovered, |open| open.kind == Kind::SocketExposed);
            }
            DomainEvent::ForeignUserEnded { .. } => {
                self.end(Recovered, |open| open.kind == Kind::ForeignUser);
            }
            DomainEvent::ForeignDaemonEnded { .. } => {
                self.end(Recovered, |open| open.kind == Kind::GpuShared);
            }
            DomainEvent::BreachEnded(MemoryBreach { client, gpu, .. }) => self.end(Recovered, |open| {
                let topic = IncidentTopic::Client { client: *client, operation: None };
                open.kind == Kind::Breach && open.topic == topic && open.gpus.contains(gpu)
            }),
            DomainEvent::GpuBack { gpu, .. } => {
                self.end(Recovered, |open| open.topic == IncidentTopic::Gpu { gpu: gpu.clone() });
            }
            DomainEvent::GpuReplaced { old, .. } => {
                self.end(Replaced, |open| open.topic == IncidentTopic::Gpu { gpu: old.clone() });
            }
            DomainEvent::ClientLeft(left) => {
                self.add_client(left);
                let is_it = |open: &Incident| match &open.topic {
                    IncidentTopic::Client { client, operation: Some(_) } => Some(*client) == left.client,
                    _ => false,
                };
                self.end(Recovered, is_it);
            }
            // What another program started on its GPUs, or with its directory, goes on.
            DomainEvent::DaemonStopped { .. } => self.end(Stopped, |open| {
                !matches!(
                    open.kind,
                    Kind::Bypass
                        | Kind::SocketExposed
                        | Kind::GpuShared
                        | Kind::GpuMissing
                        | Kind::LayoutIdsDiffer
                )
            }),
            DomainEvent::DaemonDeleted { .. } | DomainEvent::DaemonReleased { .. } => {
                self.end(Replaced, |_| true);
            }
            DomainEvent::DaemonChanged { fields, .. } if fields.iter().any(|field| field == "layout") => {
                self.end(Replaced, |open| open.topic == IncidentTopic::Layout);
            }
            DomainEvent::DaemonChanged { gpus, fields, .. } if fields.iter().any(|field| field == "gpus") => {
                self.end(Replaced, |open| match &open.topic {
                    IncidentTopic::Gpu { gpu } => !gpus.contains(gpu),
                    _ => false,
                });
            }
            _ => {}
        }
    }
}
