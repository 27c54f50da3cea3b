// What the console adds with a script: times in the reader's time zone, live pages, and copy buttons. Every page is
// complete without it.
"use strict";

(() => {
  // Times. In the reader's time zone; the exact time is in the title.
  const hourCycle = "h23";
  const today = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle });
  const earlier = new Intl.DateTimeFormat([], {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle,
  });

  // Columns have little room, and in a log each millisecond counts.
  const thisYear = new Intl.DateTimeFormat([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle });
  const longAgo = new Intl.DateTimeFormat([], { day: "numeric", month: "short", year: "numeric" });
  const exact = new Intl.DateTimeFormat([], { ...today.resolvedOptions(), hour: "2-digit", minute: "2-digit", second: "2-digit",
    fractionalSecondDigits: 3 });
  const exactEarlier = new Intl.DateTimeFormat([], { ...earlier.resolvedOptions(), fractionalSecondDigits: 3 });

  // The distance from now, in the largest unit of which there is a whole one.
  function distance(at, now) {
    const seconds = Math.round((now - at) / 1000);
    const [length, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([length]) => Math.abs(seconds) >= length) ?? [1, "s"];
    // What comes in 47:59 h comes in 2 d.
    const count = seconds > 0 ? Math.trunc(seconds / length) : Math.round(-seconds / length);
    if (Math.abs(seconds) < 5) return "just now";
    return seconds > 0 ? `${count} ${unit} ago` : `in ${count} ${unit}`;
  }

  function formatTime(element) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const now = new Date();
    if (element.title === element.dateTime) element.title = exactEarlier.format(at);
    if (element.hasAttribute("data-relative")) {
      const text = distance(at, now);
      if (element.textContent !== text) element.textContent = text;
      return;
    }
    const isToday = at.toDateString() === now.toDateString();
    let format = isToday ? today : earlier;
    if (element.hasAttribute("data-exact")) format = isToday ? exact : exactEarlier;
    else if (!isToday && element.closest(".events")) format = at.getFullYear() === now.getFullYear() ? thisYear : longAgo;
    element.textContent = format.format(at);
  }

  function formatTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) formatTime(element);
  }

  setInterval(() => {
    for (const element of document.querySelectorAll("time[data-relative]")) formatTime(element);
  }, 10_000);

  // Functions that complete the page; they run at first, and after each new part of it.
  const enhancements = [formatTimes];

  const connection = document.getElementById("connection");

  function showConnection(word, kind) {
    if (connection.textContent !== word) connection.textContent = word;
    connection.dataset.is = kind;
  }

  // Why a request failed; without a status there was no response.
  function reason(status) {
    if (status === undefined) return "the manager does not respond";
    if (status === 401) return "your session has ended";
    return `the manager refused the request (status ${status})`;
  }

  // Marks a part of a page beside a form as outdated until it is replaced.
  function markOutdated(part, status) {
    let note = part.querySelector(":scope > .outdated");
    if (!note) {
      note = document.createElement("p");
      note.className = "note warn outdated";
      note.setAttribute("role", "status");
      part.prepend(note);
    }
    note.textContent = `Not up to date: ${reason(status)}.`;
    if (status === 401) showSignedOut("What you typed stays.");
    else showConnection("not connected", "lost");
  }

  function markUpToDate() {
    showConnection("", "");
    delete connection.dataset.is;
    if (isSignedOut) hideNotice();
  }

  const notice = document.getElementById("stale-notice");
  let isSignedOut = false;

  function hideNotice() {
    isSignedOut = false;
    notice.hidden = true;
    delete notice.dataset.text;
    notice.replaceChildren();
  }

  const parse = (text) => new DOMParser().parseFromString(text, "text/html");

  // The session has ended: the page stays as it is, with what was typed, says who ended it, and lets one log in where one is.
  async function showSignedOut(remark) {
    if (isSignedOut) return;
    isSignedOut = true;
    showConnection("session ended", "lost");
    const { pathname, search } = window.location;
    const path = `/login?next=${encodeURIComponent(pathname + search)}`;
    const answer = await fetch(path).catch(() => null);
    const login = answer?.ok ? parse(await answer.text()) : null;
    const why = document.createElement("p");
    const known = login?.querySelector(".signed-out");
    why.append(...(known ? document.importNode(known, true).childNodes : ["Your session has ended."]), ` ${remark}`);
    formatTimes(why);
    notice.replaceChildren(why, signInForm(login, path));
    notice.hidden = false;
  }

  // The form of the login page; a link to it, if it could not be had.
  function signInForm(login, path) {
    const original = login?.querySelector("form[action='/login']");
    if (!original) return Object.assign(document.createElement("a"), { href: path, textContent: "Log in" });
    const form = document.importNode(original, true);
    form.className = "sign-in";
    form.querySelector(".hint")?.remove();
    const field = form.querySelector("#token");
    field.id = "sign-in-token";
    field.removeAttribute("autofocus");
    field.removeAttribute("aria-describedby");
    form.querySelector("label").htmlFor = field.id;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const answer = await fetch("/login", { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
      const next = answer && parse(await answer.text());
      if (!next || next.querySelector("form[action='/login']")) {
        form.querySelector(".wrong")?.remove();
        const wrong = Object.assign(document.createElement("p"), { className: "wrong", role: "alert" });
        wrong.textContent = next?.querySelector(".refusal")?.textContent ?? "The manager does not respond: try again.";
        form.append(wrong);
        field.select();
        return;
      }
      signedIn(next);
    });
    return form;
  }

  // A user is logged in again, perhaps another one: the frame is theirs, and a live page continues.
  function signedIn(next) {
    for (const part of [".account", ".sections"]) {
      const theirs = next.querySelector(part);
      if (theirs) document.querySelector(part).replaceWith(document.importNode(theirs, true));
    }
    hideNotice();
    for (const note of document.querySelectorAll(".outdated")) note.remove();
    document.getElementById("page").focus({ preventScroll: true });
    if (liveUpdates) liveUpdates.resume();
    else markUpToDate();
  }

  // Other scripts of the console add theirs.
  window.mpsConsole = {
    enhance(enhancement) {
      enhancements.push(enhancement);
      enhancement(document);
    },
  };

  function enhance(root) {
    for (const enhancement of enhancements) enhancement(root);
  }

  // A part with data-hold does not change while it is being read; the button it names shows that there is more.
  let pointerMovedAt = 0;
  document.addEventListener("pointermove", () => { pointerMovedAt = Date.now(); }, { passive: true });

  function isReading(part) {
    // A log starts at its end, unscrolled.
    if (part.matches(".log")) return part.scrollTop < -4;
    const selection = getSelection();
    return part.getBoundingClientRect().top < 0
      || part.querySelector("a:focus-visible") !== null
      || (part.matches(":hover") && Date.now() - pointerMovedAt < 10_000)
      || (!selection.isCollapsed && part.contains(selection.anchorNode));
  }

  // The text of a part without its times, which are in the reader's time zone.
  function readableText(part) {
    return Array.from(part.querySelectorAll("li"), (line) => line.querySelector("a")?.href
      ?? Array.from(line.childNodes, (node) => node.dateTime ?? node.textContent).join(""));
  }

  function keepsShown(part, next) {
    if (!isReading(part)) {
      document.getElementById(part.dataset.hold).hidden = true;
      return false;
    }
    if (readableText(part).join("\n") !== readableText(next).join("\n")) document.getElementById(part.dataset.hold).hidden = false;
    return true;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.newer");
    const part = button && document.querySelector(`[data-hold="${button.id}"]`);
    if (!part) return;
    button.hidden = true;
    if (part.matches(".log")) part.scrollTop = 0;
    else { getSelection().removeAllRanges(); pointerMovedAt = 0; window.scrollTo(0, 0); }
    (part.matches("[tabindex]") ? part : document.getElementById("page")).focus({ preventScroll: true });
    liveUpdates?.refresh();
  });
  document.addEventListener("scroll", (event) => {
    const part = event.target;
    if (!part.matches?.(".log[data-hold]") || isReading(part)) return;
    if (!document.getElementById(part.dataset.hold).hidden) liveUpdates?.refresh();
  }, { capture: true, passive: true });

  // The times of a new part are converted before it is compared with what is shown.
  htmx.registerExtension("console", {
    htmx_before_morph_node(_, { oldNode, newNode }) {
      if (newNode instanceof HTMLTimeElement) formatTime(newNode);
      // A picture stays while there is none of the present text.
      if (newNode.dataset?.unchanged !== undefined) return false;
      return !(oldNode.dataset?.hold && keepsShown(oldNode, newNode));
    },
  });

  const page = document.getElementById("page");

  // The menu is outside of what a live page replaces.
  enhancements.push(() => {
    const [badge, open] = [document.getElementById("open-incidents"), document.getElementById("page").dataset.openIncidents];
    if (!badge) return;
    badge.textContent = open;
    badge.hidden = open === "0";
  });

  document.addEventListener("htmx:after:swap", () => enhance(document));

  // Search: what is typed is looked up as it is typed, and the arrow keys choose.
  const jump = document.getElementById("jump");

  function startSearch() {
    const form = jump.form;
    let hits = null;
    let asked = 0;

    function close() {
      hits?.remove();
      hits = null;
      jump.setAttribute("aria-expanded", "false");
      jump.removeAttribute("aria-activedescendant");
    }

    function choose(link) {
      for (const one of hits.querySelectorAll(".chosen")) one.classList.remove("chosen");
      if (!link) return;
      link.classList.add("chosen");
      link.scrollIntoView({ block: "nearest" });
      jump.setAttribute("aria-activedescendant", link.id);
    }

    async function look() {
      const text = jump.value.trim();
      asked += 1;
      const asking = asked;
      if (!text) { close(); return; }
      const answer = await fetch(`/search?q=${encodeURIComponent(text)}`).catch(() => null);
      if (asking !== asked || !answer?.ok) return;
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".hits");
      if (asking !== asked) return;
      close();
      if (!found) return;
      hits = document.importNode(found, true);
      hits.id = "jump-hits";
      hits.setAttribute("role", "listbox");
      hits.setAttribute("aria-label", "Results");
      hits.querySelectorAll("li").forEach((item) => item.setAttribute("role", "presentation"));
      hits.querySelectorAll("a").forEach((link, at) => {
        link.id = `jump-hit-${at}`;
        link.setAttribute("role", "option");
        link.tabIndex = -1;
      });
      form.append(hits);
      jump.setAttribute("aria-expanded", "true");
      choose(hits.querySelector("a"));
    }

    jump.setAttribute("role", "combobox");
    jump.setAttribute("aria-autocomplete", "list");
    jump.setAttribute("aria-controls", "jump-hits");
    jump.setAttribute("aria-expanded", "false");
    jump.placeholder = /Mac|iPhone|iPad/.test(navigator.platform) ? "Search or jump to…   ⌘K" : "Search or jump to…   Ctrl K";
    let timer = null;
    jump.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, 100); });
    jump.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { close(); jump.value = ""; jump.blur(); return; }
      if (!hits) return;
      const links = [...hits.querySelectorAll("a")];
      const at = links.findIndex((link) => link.matches(".chosen"));
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        choose(links[(at + (event.key === "ArrowDown" ? 1 : links.length - 1)) % links.length]);
      } else if (event.key === "Enter" && at >= 0) {
        event.preventDefault();
        links[at].click();
      }
    });
    jump.addEventListener("blur", () => setTimeout(() => { if (document.activeElement !== jump) close(); }, 200));
    document.addEventListener("keydown", (event) => {
      const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
      const wants = ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") || (event.key === "/" && !isTyping);
      if (!wants) return;
      event.preventDefault();
      jump.focus();
      jump.select();
    });
  }

  // A refused reload of a part does not replace it; the page shows the error.
  let liveUpdates = null;

  function handleResponse(part, status) {
    if (part.id === "page") liveUpdates?.showStatus(status);
    else if (status === undefined || status >= 400) markOutdated(part, status);
    else markUpToDate();
  }

  document.addEventListener("htmx:before:response", (event) => {
    const { target, response: { status } } = event.detail.ctx;
    if (status >= 400) event.preventDefault();
    handleResponse(target, status);
  });
  document.addEventListener("htmx:error", (event) => {
    const ctx = event.detail.ctx;
    if (ctx?.target && !ctx.response) handleResponse(ctx.target);
  });

  // Live pages. The server reports that the page is stale, and the page reloads itself.
  // Longest silence of a healthy manager, which marks pages stale every 5 s.
  const SILENCE_MS = 15_000;

  function startLiveUpdates() {
    let source = null;
    let loading = false;
    let isPending = false;
    let timer = null;
    let isStopped = false;
    // How the page is kept up to date, and since when its content is valid.
    let label = ["", ""];
    let validSince = new Date();
    // The time of the last response, whatever its status.
    let respondedAt = Date.now();

    function showNotice(text, label = "Reload", href = window.location.href) {
      if (notice.dataset.text === text) return;
      notice.dataset.text = text;
      notice.textContent = `${text} `;
      const link = document.createElement("a");
      link.href = href;
      link.textContent = label;
      notice.append(link);
      notice.hidden = false;
    }

    function showStale(status) {
      showNotice(`This page is as of ${today.format(validSince)}: ${reason(status)}.`);
      showConnection(status === undefined ? "not connected" : "not up to date", "lost");
    }

    function stop() {
      isStopped = true;
      source?.close();
      clearInterval(timer);
    }

    function showEnded() {
      if (isStopped) return;
      stop();
      showSignedOut(`The page is as of ${today.format(validSince)}.`);
    }

    function resume() {
      isStopped = false;
      timer = null;
      connect();
      refresh();
    }

    function showStatus(status) {
      respondedAt = Date.now();
      if (status === 401) {
        showEnded();
      } else if ([403, 404, 410].includes(status)) {
        stop();
        showNotice("This no longer exists, or you no longer have access. The page is as last seen.");
        showConnection("gone", "lost");
      } else if (status === undefined || status >= 400) {
        showStale(status);
      } else {
        validSince = new Date();
        notice.hidden = true;
        delete notice.dataset.text;
        showConnection(...label);
      }
    }

    async function refresh() {
      if (isStopped) return;
      if (document.hidden) { isPending = true; return; }
      if (loading) { isPending = true; return; }
      loading = true;
      try {
        await htmx.ajax("GET", window.location.href, { target: "#page", select: "#page", swap: "outerMorph" });
      } finally {
        loading = false;
      }
      if (isPending) { isPending = false; refresh(); }
    }

    function connect() {
      if (isStopped) return;
      // What happened since the page was rendered counts too.
      source = new EventSource(`/live?after=${document.getElementById("page").dataset.live}`);
      const stream = source;
      let wasLost = false;
      stream.addEventListener("open", () => {
        clearInterval(timer);
        timer = null;
        label = ["live", "live"];
        // Events during a disconnection are not sent later.
        if (wasLost) refresh();
        else if (notice.hidden) showConnection(...label);
        wasLost = false;
      });
      stream.addEventListener("stale", refresh);
      stream.addEventListener("ended", showEnded);
      stream.addEventListener("error", () => {
        if (isStopped) return;
        if (stream.readyState === EventSource.CLOSED) {
          // Refused: too many streams, or the session has ended. The page then polls.
          label = ["every 5 s", "slow"];
          if (notice.hidden) showConnection(...label);
          timer ??= setInterval(refresh, 5000);
          setTimeout(() => { if (source === stream) connect(); }, 30000);
        } else {
          wasLost = true;
          showStale();
        }
      });
      window.addEventListener("pagehide", () => stream.close(), { once: true });
    }

    // A browser opens a few connections to a host: one for each hidden page would leave none.
    // A hung manager closes no connection, but is silent for longer than the interval of stale messages.
    let checkedAt = Date.now();
    setInterval(() => {
      const now = Date.now();
      // Nothing was requested while the page was hidden or the machine asleep.
      if (document.hidden || now - checkedAt > 5000) respondedAt = now;
      else if (!isStopped && now - respondedAt > SILENCE_MS) showStale();
      checkedAt = now;
    }, 1000);
    document.addEventListener("visibilitychange", () => {
      if (isStopped) return;
      if (document.hidden) { source?.close(); source = null; return; }
      if (!source) { isPending = true; connect(); }
      if (isPending) { isPending = false; refresh(); }
    });
    window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
    connect();
    return { showStatus, refresh, resume };
  }

  // Copying: a button has the text in data-copy-text, or names the element that has it in data-copy.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy], button[data-copy-text]");
    if (!button) return;
    const text = button.dataset.copyText;
    const source = text === undefined ? document.getElementById(button.dataset.copy) : button.parentElement;
    const [word, name] = [button.textContent, button.getAttribute("aria-label")];
    const show = (outcome) => {
      if (text === undefined) button.textContent = outcome;
      else { button.dataset.outcome = outcome; button.setAttribute("aria-label", outcome); }
    };
    try {
      await navigator.clipboard.writeText(text ?? source.value ?? source.textContent);
      show("Copied");
    } catch {
      source.classList.add("whole-id");
      getSelection().selectAllChildren(source.querySelector?.(".long") ?? source);
      show("Selected: copy it");
    }
    setTimeout(() => {
      if (text === undefined) button.textContent = word;
      else { delete button.dataset.outcome; button.setAttribute("aria-label", name); }
    }, 2000);
  });

  // The text of a chosen file is copied into the field that its input names.
  document.addEventListener("change", async (event) => {
    const file = event.target.matches("input[type=file][data-into]") && event.target.files[0];
    if (!file) return;
    const { into, chooses, submits } = event.target.dataset;
    document.getElementById(into).value = await file.text();
    // Choosing a file selects it as the source.
    const source = document.getElementById(chooses ?? "");
    if (source) source.checked = true;
    document.getElementById(submits ?? "")?.requestSubmit();
  });

  // A file that is dropped anywhere on the page of a form with data-drop becomes the text of the field that it names.
  const takesDrops = document.querySelector("form[data-drop]");
  for (const kind of takesDrops ? ["dragover", "dragleave", "drop"] : []) {
    document.addEventListener(kind, async (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      takesDrops.classList.toggle("dropping", kind === "dragover");
      const file = kind === "drop" && event.dataTransfer.files[0];
      if (!file) return;
      document.getElementById(takesDrops.dataset.drop).value = await file.text();
      takesDrops.requestSubmit();
    });
  }

  // A slider sets the field beside it and follows it; moving it makes the choice that needs the field.
  for (const range of document.querySelectorAll("input[type=range][data-sets]")) {
    const field = document.getElementById(range.dataset.sets);
    const follow = () => {
      const typed = field.value.trim().match(/^(\d+(?:\.\d+)?)\s*([GM]?)/i);
      if (typed) range.value = typed[2].toUpperCase() === "M" ? typed[1] / 1024 : typed[1];
    };
    field.addEventListener("input", follow);
    range.addEventListener("input", () => {
      field.value = range.value + (range.dataset.unit ?? "");
      const choice = document.getElementById(range.dataset.chooses ?? "");
      if (choice) choice.checked = true;
    });
    follow();
  }

  // A size that still fits becomes a step at the end of the layout's text.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-adds]");
    if (!button) return;
    const field = document.getElementById("text");
    const names = new Set(Array.from(field.value.matchAll(/partition:\s*"?([\w-]+)/g), (found) => found[1]));
    let number = 1;
    while (names.has(`part_${number}`)) number += 1;
    const step = `- add: {gpu: ${button.dataset.gpu}, partition: part_${number}, chunks: ${button.dataset.adds}}`;
    const text = field.value.trimEnd();
    const steps = [...text.matchAll(/^([ \t]*)- .*$/gm)];
    const last = steps.at(-1);
    if (last) {
      const end = last.index + last[0].length;
      field.value = `${text.slice(0, end)}\n${last[1]}${step}${text.slice(end)}\n`;
    } else {
      field.value = `${text.replace(/^steps:.*$/m, "").trimEnd()}\nsteps:\n  ${step}\n`;
    }
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });

  // A form is submitted once, however often its button is clicked.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || event.defaultPrevented) return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => { delete form.dataset.sent; }, 5000);
  });
  window.addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });

  document.documentElement.classList.add("scripted");
  enhance(document);
  if (jump) startSearch();
  if (page.matches("[data-live]")) liveUpdates = startLiveUpdates();
})();
