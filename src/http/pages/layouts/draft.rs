//! A layout being edited: what was typed, step by step, with errors beside each step.
//!
//! Nothing typed is ever lost: a draft is read from its form and shown again as it was, valid or not. A step is numbered by
//! its position, in its fields' names and in the pointers of errors.

use crate::domain::layout::{AddStep, Enforcement, Layout, LayoutStep, RemoveStep};
use crate::domain::{PartitionName, TenantName};
use crate::http::pages::forms::{Form, FormErrors};
use crate::service::FieldError;

/// Most steps of a form: one more than a layout may have, so that the error is shown.
const MAX_STEPS: usize = crate::domain::layout::MAX_STEPS + 1;

/// A layout being edited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LayoutDraft {
    pub(super) percentage: bool,
    pub(super) sku: String,
    pub(super) steps: Vec<DraftStep>,
    /// Errors that belong to no step.
    pub(super) wrong: Vec<String>,
    /// The error of the product name.
    pub(super) wrong_sku: Option<String>,
}

/// A step being edited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DraftStep {
    pub(super) removes: bool,
    pub(super) gpu: String,
    pub(super) partition: String,
    pub(super) chunks: String,
    pub(super) tenants: String,
    /// Errors by field name.
    pub(super) wrong: Vec<(&'static str, String)>,
    /// Reason for which it does not fit the selected kind of GPU.
    pub(super) unfit: Option<String>,
    /// True if it gets the focus.
    pub(super) focus: bool,
}

impl DraftStep {
    /// The error of a field.
    pub(super) fn wrong(&self, field: &str) -> Option<&str> {
        self.wrong.iter().find(|(name, _)| *name == field).map(|(_, why)| why.as_str())
    }

    fn refuse(&mut self, field: &'static str, why: String) {
        self.wrong.push((field, why));
    }

    fn added(role: String) -> Self {
        Self { gpu: role, focus: true, ..Self::default() }
    }
}

/// A button of the editor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EditorButton {
    Add,
    Remove,
    Drop(usize),
    Up(usize),
    Down(usize),
    /// Shows the form again with its errors.
    Check,
    Save,
}

impl EditorButton {
    /// The button with this value; unknown values mean a check.
    pub(super) fn of(value: &str) -> Self {
        let numbered = value.split_once('-').and_then(|(verb, number)| Some((verb, number.parse().ok()?)));
        match (value, numbered) {
            ("add", _) => Self::Add,
            ("remove", _) => Self::Remove,
            ("save", _) => Self::Save,
            (_, Some(("drop", number))) => Self::Drop(number),
            (_, Some(("up", number))) => Self::Up(number),
            (_, Some(("down", number))) => Self::Down(number),
            _ => Self::Check,
        }
    }
}

impl LayoutDraft {
    /// A draft that starts from a layout.
    pub(super) fn of(layout: &Layout) -> Self {
        let step = |step: &LayoutStep| match step {
            LayoutStep::Add(add) => DraftStep {
                gpu: add.gpu.to_string(),
                partition: add.partition.to_string(),
                chunks: add.chunks.to_string(),
                tenants: names(&add.tenants),
                ..DraftStep::default()
            },
            LayoutStep::Remove(remove) => {
                DraftStep { removes: true, partition: remove.partition.to_string(), ..DraftStep::default() }
            }
        };
        Self {
            percentage: layout.enforcement == Enforcement::Percentage,
            sku: layout.sku.clone().unwrap_or_default(),
            steps: layout.steps.iter().map(step).collect(),
            ..Self::default()
        }
    }

    /// The draft in a submitted form.
    pub(super) fn typed(form: &Form) -> Self {
        let step = |key: &str| {
            let of = |field: &str| form.typed(&format!("step-{key}-{field}")).to_owned();
            DraftStep {
                removes: of("kind") == "remove",
                gpu: of("gpu"),
                partition: of("partition"),
                chunks: of("chunks"),
                tenants: of("tenants"),
                ..DraftStep::default()
            }
        };
        Self {
            percentage: form.text("enforcement") == "percentage",
            sku: form.typed("sku").to_owned(),
            steps: form.all("step").take(MAX_STEPS).map(step).collect(),
            ..Self::default()
        }
    }

    /// Applies a button.
    pub(super) fn press(&mut self, pressed: EditorButton) {
        let last = self.steps.len();
        match pressed {
            EditorButton::Add => {
                let role = self.steps.iter().rev().find(|step| !step.removes).map(|step| step.gpu.clone());
                self.steps.push(DraftStep::added(role.unwrap_or_else(|| "0".to_owned())));
            }
            EditorButton::Remove => {
                self.steps.push(DraftStep { removes: true, focus: true, ..DraftStep::default() });
            }
            EditorButton::Drop(number) if number < last => {
                self.steps.remove(number);
                let next = number.min(self.steps.len().saturating_sub(1));
                self.focus(next);
            }
            EditorButton::Up(number) if number > 0 && number < last => {
                self.steps.swap(number, number - 1);
                self.focus(number - 1);
            }
            EditorButton::Down(number) if number + 1 < last => {
                self.steps.swap(number, number + 1);
                self.focus(number + 1);
            }
            EditorButton::Drop(_)
            | EditorButton::Up(_)
            | EditorButton::Down(_)
            | EditorButton::Check
            | EditorButton::Save => {}
        }
        self.steps.truncate(MAX_STEPS);
    }

    fn focus(&mut self, number: usize) {
        if let Some(step) = self.steps.get_mut(number) {
            step.focus = true;
        }
    }

    /// The partitions that a removal at its position can name.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "templates call it with references")]
    pub(super) fn before(&self, number: &usize) -> Vec<&str> {
        let (mut there, until) = (Vec::new(), (*number).min(self.steps.len()));
        for step in &self.steps[..until] {
            let name = step.partition.trim();
            if step.removes {
                there.retain(|other| *other != name);
            } else if !name.is_empty() {
                there.push(name);
            }
        }
        there
    }

    /// The complete steps with their positions, and errors for the others; `strict` also reports missing values.
    pub(super) fn read(&mut self, strict: bool) -> Vec<(usize, LayoutStep)> {
        let mut whole = Vec::new();
        for (number, step) in self.steps.iter_mut().enumerate() {
            whole.extend(step.read(strict).map(|step| (number, step)));
        }
        let (places, steps): (Vec<usize>, Vec<LayoutStep>) = whole.iter().cloned().unzip();
        if let Err(invalid) = self.layout_of(steps).check() {
            self.refuse(&invalid.pointer, invalid.reason.to_string(), &places);
        }
        whole
    }

    /// The layout, if the draft has no errors.
    pub(super) fn layout(&mut self) -> Option<Layout> {
        let steps = self.read(true).into_iter().map(|(_, step)| step).collect();
        self.is_right().then(|| self.layout_of(steps))
    }

    fn layout_of(&self, steps: Vec<LayoutStep>) -> Layout {
        let enforcement = if self.percentage { Enforcement::Percentage } else { Enforcement::Static };
        let sku = Some(self.sku.trim().to_owned()).filter(|sku| !sku.is_empty());
        Layout { enforcement, sku, steps }
    }

    fn is_right(&self) -> bool {
        self.wrong.is_empty()
            && self.wrong_sku.is_none()
            && self.steps.iter().all(|step| step.wrong.is_empty())
    }

    /// Adds the draft's errors to those of its form.
    pub(super) fn add_errors(&self, refused: &mut FormErrors) {
        for why in &self.wrong {
            refused.whole.push(why.clone());
        }
        if let Some(why) = &self.wrong_sku {
            refused.add("sku", "product", why);
        }
        for (number, step) in self.steps.iter().enumerate() {
            for (field, why) in &step.wrong {
                let label = format!("step {}, {field}", number + 1);
                refused.add(&format!("step-{number}-{field}"), &label, why);
            }
        }
    }

    /// Assigns validation errors to steps; returns those that belong to no step.
    pub(super) fn refuse_all(&mut self, errors: Vec<FieldError>) -> Vec<FieldError> {
        let places: Vec<usize> = (0..self.steps.len()).collect();
        let of_layout = |error: &FieldError| error.pointer.starts_with("/layout/");
        let (own, others): (Vec<_>, Vec<_>) = errors.into_iter().partition(of_layout);
        for FieldError { pointer, detail } in own {
            self.refuse(pointer.trim_start_matches("/layout"), detail, &places);
        }
        others
    }

    /// Assigns an error to the step that its pointer names; `places` are the positions of the layout's steps.
    fn refuse(&mut self, pointer: &str, why: String, places: &[usize]) {
        let mut parts = pointer.trim_start_matches('/').split('/');
        let step = match (parts.next(), parts.next().and_then(|number| number.parse::<usize>().ok())) {
            (Some("sku"), _) => {
                self.wrong_sku = Some(why);
                return;
            }
            (Some("steps"), Some(number)) => places.get(number).and_then(|place| self.steps.get_mut(*place)),
            _ => None,
        };
        let Some(step) = step else {
            self.wrong.push(why);
            return;
        };
        let field = match parts.nth(1) {
            Some("gpu") => "gpu",
            Some("chunks") => "chunks",
            Some("tenants") => "tenants",
            _ => "partition",
        };
        step.refuse(field, why);
    }
}

impl DraftStep {
    fn read(&mut self, strict: bool) -> Option<LayoutStep> {
        let partition = self.name(strict);
        if self.removes {
            return Some(LayoutStep::Remove(RemoveStep { partition: partition? }));
        }
        let gpu = self.number("gpu", "0", strict);
        let chunks = self.number("chunks", "4", strict);
        let tenants = self.tenants();
        Some(LayoutStep::Add(AddStep {
            gpu: gpu?,
            partition: partition?,
            chunks: chunks?,
            tenants: tenants?,
        }))
    }

    fn name(&mut self, strict: bool) -> Option<PartitionName> {
        let text = self.partition.trim();
        if text.is_empty() {
            if strict {
                self.refuse("partition", "fill this in".to_owned());
            }
            return None;
        }
        match PartitionName::parse(text) {
            Ok(name) => Some(name),
            Err(error) => {
                self.refuse("partition", error.to_string());
                None
            }
        }
    }

    fn number(&mut self, field: &'static str, example: &str, strict: bool) -> Option<u32> {
        let text = if field == "gpu" { self.gpu.trim() } else { self.chunks.trim() };
        if text.is_empty() {
            if strict {
                self.refuse(field, "fill this in".to_owned());
            }
            return None;
        }
        match text.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                let shown: String = text.chars().take(80).collect();
                self.refuse(
                    field,
                    format!("{shown:?} is not a whole number: give digits only, for example {example}"),
                );
                None
            }
        }
    }

    fn tenants(&mut self) -> Option<Vec<TenantName>> {
        let typed = self.tenants.clone();
        let names = typed.split([',', ' ', '\t']).filter(|name| !name.is_empty());
        let read: Result<Vec<TenantName>, _> = names.map(TenantName::parse).collect();
        read.map_err(|error| self.refuse("tenants", error.to_string())).ok()
    }
}

/// Names separated by commas.
pub(super) fn names(tenants: &[TenantName]) -> String {
    let names: Vec<&str> = tenants.iter().map(TenantName::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(text: &str) -> LayoutDraft {
        LayoutDraft::typed(&Form::parse(text.as_bytes()))
    }

    const TWO: &str = "enforcement=static&sku=&step=0&step-0-kind=add&step-0-gpu=0&step-0-partition=web&step-0-chunks=7\
                       &step-0-tenants=a,+b&step=1&step-1-kind=remove&step-1-partition=web";

    #[test]
    fn layout_survives_the_form() {
        let mut typed = draft(TWO.replace("a,+b", "").as_str());
        let layout = typed.layout().expect("a layout");
        assert_eq!(layout.steps.len(), 2);
        let mut again = LayoutDraft::of(&layout);
        assert_eq!(again.layout(), Some(layout));
    }

    #[test]
    fn errors_are_assigned_to_steps() {
        let mut typed = draft(TWO);
        assert_eq!(typed.layout(), None);
        let why = typed.steps[0].wrong("tenants").expect("a word");
        assert!(why.contains("removed by a later step"), "{why}");

        let mut typed = draft("step=x&step-x-kind=add&step-x-gpu=0&step-x-partition=Web&step-x-chunks=two");
        assert_eq!(typed.layout(), None);
        let step = &typed.steps[0];
        assert!(step.wrong("chunks").expect("a word").contains("\"two\""), "{step:?}");
        assert!(step.wrong("partition").is_some() && step.chunks == "two" && step.partition == "Web");
    }

    #[test]
    fn unfinished_steps_are_errors_only_on_save() {
        let mut typed = draft(TWO.replace("a,+b", "").as_str());
        typed.press(EditorButton::Add);
        assert_eq!((typed.read(false).len(), typed.is_right()), (2, true));
        assert_eq!(typed.layout(), None);
        assert_eq!(typed.steps[2].wrong("partition"), Some("fill this in"));
        // A pointer counts the steps of the layout, which lacks the unfinished one.
        typed.steps.swap(0, 2);
        for step in &mut typed.steps {
            step.wrong.clear();
        }
        typed.read(false);
        assert!(typed.steps[1].wrong("partition").expect("a word").contains("no partition web"));
    }

    #[test]
    fn buttons_change_only_their_step() {
        let mut typed = draft(TWO);
        typed.press(EditorButton::of("add"));
        assert_eq!((typed.steps[2].gpu.as_str(), typed.steps[2].focus), ("0", true));
        typed.press(EditorButton::of("up-2"));
        assert!(!typed.steps[1].removes && typed.steps[2].removes);
        typed.press(EditorButton::of("drop-1"));
        assert_eq!(typed.steps.len(), 2);
        for nothing in ["up-0", "down-1", "drop-7", "up-x", "", "drop-", "up-18446744073709551615"] {
            let before = typed.clone();
            typed.press(EditorButton::of(nothing));
            assert_eq!(typed, before, "{nothing}");
        }
        assert_eq!(typed.before(&1), ["web"]);
        assert!(typed.before(&2).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_form_is_shown_again(bytes in proptest::collection::vec(0u8.., 0..300), number in 0usize..5) {
            let mut typed = LayoutDraft::typed(&Form::parse(&bytes));
            typed.press(EditorButton::Up(number));
            typed.press(EditorButton::Drop(number));
            typed.read(true);
        }
    }
}
