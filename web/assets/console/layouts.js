// The editor of layouts without reloads: its buttons send the form as they do without a script, and what comes back is
// put in the place of what stands there. What is typed meanwhile is never lost: an answer to an older text is thrown away, and
// the form is sent again.
"use strict";

(() => {
  // The text of a file is put into the field that the file's own names.
  document.addEventListener("change", async (event) => {
    const file = event.target.matches("input[type=file][data-into]") && event.target.files[0];
    if (!file) return;
    document.getElementById(event.target.dataset.into).value = await file.text();
    // Whoever chooses a file means it, whatever was chosen before.
    const source = document.getElementById(event.target.dataset.chooses ?? "");
    if (source) source.checked = true;
  });

  const form = document.getElementById("editor");
  if (!form) return;
  let sending = 0;
  // Whether the session was over when it was last asked: then buttons send the form as they do without a script, and it goes
  // through the log-in.
  let isOver = false;
  // Buttons that wait for their answer.
  let pressing = 0;

  const typed = () => new URLSearchParams(new FormData(form));

  // What the form comes to; null where there is no answer to it, or somebody asked again meanwhile.
  async function ask(what) {
    const mine = ++sending;
    for (;;) {
      const before = typed();
      const body = new URLSearchParams([...before, ...Object.entries(what)]);
      let status, text;
      try {
        const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/html" } });
        text = await answer.text();
        status = answer.ok ? 0 : answer.status;
      } catch {
        // No answer, or not all of one.
      }
      if (mine !== sending) return null;
      isOver = status === 401;
      if (status !== 0) { window.mpsConsole.outdated(document.getElementById("outcome"), status); return null; }
      window.mpsConsole.upToDate();
      if (typed().toString() === before.toString()) return new DOMParser().parseFromString(text, "text/html");
    }
  }

  const put = (shown, id) => document.getElementById(id).replaceWith(document.adoptNode(shown.getElementById(id)));

  // What is wrong is shown beside each field, and no field is touched.
  function tell(shown) {
    put(shown, "outcome");
    for (const told of document.querySelectorAll(".step-told")) {
      const now = shown.getElementById(told.id);
      if (now) told.replaceWith(document.adoptNode(now));
    }
    for (const field of form.querySelectorAll("#steps input[id], #sku")) {
      const now = shown.getElementById(field.id);
      field.toggleAttribute("aria-invalid", now?.getAttribute("aria-invalid") === "true");
      if (now?.hasAttribute("aria-invalid")) field.setAttribute("aria-invalid", "true");
    }
  }

  form.addEventListener("submit", async (event) => {
    const pressed = event.submitter?.value;
    if (!pressed || pressed === "save" || pressed === "look" || isOver) return;
    event.preventDefault();
    const verb = pressed.split("-")[0];
    pressing += 1;
    const shown = await ask({ do: pressed, lenient: "yes" });
    pressing -= 1;
    if (isOver) form.requestSubmit(event.submitter);
    if (!shown) return;
    const next = shown.querySelector("#steps [autofocus]")?.id;
    put(shown, "steps");
    put(shown, "told");
    put(shown, "outcome");
    // A step that is moved is followed by the focus, so that it can be moved on with the same key.
    const field = next && document.getElementById(next);
    const again = field && (verb === "up" || verb === "down")
      && field.closest(".step").querySelector(`.moves button[value^="${verb}-"]:not(:disabled)`);
    (again || field || form.querySelector('button[value="add"]')).focus();
  }, true);

  let timer = null;
  form.addEventListener("input", (event) => {
    if (event.target.id === "note" || event.target.id === "name") return;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      // What was pressed tells what is typed by now, too, and its answer is not to be thrown away.
      if (pressing > 0) return;
      const shown = await ask({ do: "look", lenient: "yes" });
      if (shown) tell(shown);
    }, 300);
  });
})();
