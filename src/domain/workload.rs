//! Workload of a tenant, by its labels: the container of a pod, or a job. The Kubernetes plugin and the Prolog of Slurm write these labels,
//! since the name `kube-81732caa7a79` means nothing to whoever runs the pod.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The label with the namespace of a pod.
pub const NAMESPACE: &str = "kubernetes-namespace";
/// The label with the name of a pod.
pub const POD: &str = "kubernetes-pod";
/// The label with the name of a pod's container.
pub const CONTAINER: &str = "kubernetes-container";
/// The label with the ID of a Slurm job, and of an array's task as `4711_3`.
pub const JOB: &str = "slurm-job";
/// The label with the user of a Slurm job.
pub const USER: &str = "slurm-user";

/// Workload that a tenant was created for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// The container of a pod.
    Container {
        /// Its namespace.
        namespace: String,
        /// Its pod.
        pod: String,
        /// Its name, where the labels have it.
        container: Option<String>,
    },
    /// A job.
    Job {
        /// Its ID.
        id: String,
        /// Its user, where the labels have one.
        user: Option<String>,
    },
}

impl Workload {
    /// Reads the workload from the labels of a tenant; `None` if they name neither a pod nor a job.
    pub fn of(labels: &BTreeMap<String, String>) -> Option<Self> {
        let label = |key: &str| labels.get(key).filter(|value| !value.is_empty()).cloned();
        match (label(NAMESPACE), label(POD)) {
            (Some(namespace), Some(pod)) => {
                Some(Self::Container { namespace, pod, container: label(CONTAINER) })
            }
            _ => Some(Self::Job { id: label(JOB)?, user: label(USER) }),
        }
    }

    /// Returns the labels of the workload.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let pairs = match self {
            Self::Container { namespace, pod, container } => {
                [(NAMESPACE, Some(namespace)), (POD, Some(pod)), (CONTAINER, container.as_ref())]
            }
            Self::Job { id, user } => [(JOB, Some(id)), (USER, user.as_ref()), (POD, None)],
        };
        pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.clone()))).collect()
    }

    /// Returns the labels of the workload by their names in metrics.
    pub fn metric_labels(&self) -> [(&'static str, String); 5] {
        let text = |value: Option<&String>| value.cloned().unwrap_or_default();
        let (namespace, pod, container, job, user) = match self {
            Self::Container { namespace, pod, container } => {
                (Some(namespace), Some(pod), container.as_ref(), None, None)
            }
            Self::Job { id, user } => (None, None, None, Some(id), user.as_ref()),
        };
        [
            // Prometheus has labels of its own that are called namespace, pod, container and job.
            ("kubernetes_namespace", text(namespace)),
            ("kubernetes_pod", text(pod)),
            ("kubernetes_container", text(container)),
            ("slurm_job", text(job)),
            ("slurm_user", text(user)),
        ]
    }
}

/// Writes `pod prod/web-0/app`, or `job 4711 of alice`.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container { namespace, pod, container } => {
                write!(f, "pod {namespace}/{pod}")?;
                container.iter().try_for_each(|container| write!(f, "/{container}"))
            }
            Self::Job { id, user } => {
                write!(f, "job {id}")?;
                user.iter().try_for_each(|user| write!(f, " of {user}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_a_pod_or_a_job() {
        let of = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            Workload::of(&labels.collect()).map(|workload| workload.to_string())
        };
        let pod = [(NAMESPACE, "prod"), (POD, "web-0"), (CONTAINER, "app")];
        assert_eq!(of(&pod).as_deref(), Some("pod prod/web-0/app"));
        assert_eq!(of(&pod[..2]).as_deref(), Some("pod prod/web-0"));
        assert_eq!(of(&pod[1..]), None, "a pod without its namespace is any");
        assert_eq!(of(&[(JOB, "4711_3"), (USER, "alice")]).as_deref(), Some("job 4711_3 of alice"));
        assert_eq!(of(&[(JOB, "4711")]).as_deref(), Some("job 4711"));
        for none in [&[][..], &[(USER, "alice")], &[(JOB, "")], &[("team", "search")]] {
            assert_eq!(of(none), None);
        }
        let names = [NAMESPACE, POD, CONTAINER].map(|key| (key.to_owned(), "a".to_owned())).into();
        assert_eq!(Workload::of(&names).expect("a pod").labels(), names);
        let names = [JOB, USER].map(|key| (key.to_owned(), "a".to_owned())).into();
        assert_eq!(Workload::of(&names).expect("a job").labels(), names);
    }
}
