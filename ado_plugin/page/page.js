"use strict";
// Receives the parts of the page as HTML, escaped by the server, and changes only what differs, so that focus and scroll stay.

const byId = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") || "";
let stream = new AbortController();

function chosenJob() {
  const found = /^#job=(.+)$/.exec(location.hash);
  return found ? decodeURIComponent(found[1]) : "";
}

function say(text) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

// Makes `old` like `fresh`, node by node.
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh.cloneNode(true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name); // "open": the reader unfolded it
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((node, place) => {
    if (place < before.length) morph(before[place], node);
    else old.append(node.cloneNode(true));
  });
  before.slice(after.length).forEach((node) => node.remove());
}

function show(parts) {
  for (const [name, html] of Object.entries(parts)) {
    if (name === "who") {
      byId("who").textContent = html;
      continue;
    }
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    morphChildren(byId(name), fresh.content);
  }
}

function signedIn(yes) {
  byId("sign-in").hidden = yes;
  byId("content").hidden = !yes;
  byId("sign-out").hidden = !yes || !token;
}

function signOut(reason) {
  token = "";
  sessionStorage.removeItem("token");
  signedIn(false);
  show({ who: "", pools: "", jobs: "", figures: "", job: "" });
  say(reason);
  byId("token").focus();
}

async function call(path, method) {
  const reply = await fetch(path, { method, headers: { Authorization: `Bearer ${token}` } });
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => null);
  throw new Error(body && body.error ? body.error.message : `the server answered ${reply.status}`);
}

async function read(mine) {
  const reply = await fetch(`stream?job=${encodeURIComponent(chosenJob())}`, {
    headers: { Authorization: `Bearer ${token}` },
    signal: mine.signal,
  });
  if (reply.status === 401) return false;
  if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
  signedIn(true);
  say("Live");
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return true;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) if (event.startsWith("data: ")) show(JSON.parse(event.slice(6)));
  }
}

async function follow() {
  stream.abort();
  const mine = (stream = new AbortController());
  while (!mine.signal.aborted) {
    try {
      if (!(await read(mine))) {
        signOut(token ? "This token is not known to the server." : "Sign in with a token.");
        return;
      }
    } catch (error) {
      if (mine.signal.aborted) return;
    }
    say("Connection lost; trying again");
    await new Promise((wake) => setTimeout(wake, 2000));
  }
}

async function download(job, ending) {
  const reply = await call(`jobs/${encodeURIComponent(job)}/answer.${ending}`, "GET");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await reply.blob());
  link.download = `${job}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-job]");
  if (!button) return;
  const { job, act, download: ending } = button.dataset;
  try {
    if (ending) await download(job, ending);
    else await call(`jobs/${encodeURIComponent(job)}/${act}`, "POST");
    say(ending ? `Downloaded ${job}.${ending}` : `${act === "cancel" ? "Cancelling" : "Resuming"} ${job}`);
  } catch (error) {
    say(error.message);
  }
});

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  sessionStorage.setItem("token", token);
  byId("token").value = "";
  follow();
});

byId("sign-out").addEventListener("click", () => {
  stream.abort();
  signOut("Signed out.");
});

addEventListener("hashchange", () => {
  show({ job: "" });
  follow().catch(() => {});
  const shown = new MutationObserver(() => {
    const heading = byId("job-heading");
    if (!heading) return;
    shown.disconnect();
    heading.focus();
    heading.scrollIntoView({ block: "start" });
  });
  if (chosenJob()) shown.observe(byId("job"), { childList: true });
});

// A link of the form #token=... signs in, and disappears from the address.
const given = /^#token=(.+)$/.exec(location.hash);
if (given) {
  token = decodeURIComponent(given[1]);
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
}
follow();
