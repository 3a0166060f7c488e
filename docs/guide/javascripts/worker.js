// Browsers start no worker for a page that was opened from a folder. The search then runs in a hidden frame, behind the interface of Worker.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = Object.assign(document.createElement("iframe"), { hidden: true })
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(new URL(each, url))), Promise.resolve())
      this.postMessage = data => ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
      this.terminate = () => frame.remove()
      const load = source => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        Object.assign(script, { src: source, onload: done, onerror: failed })
        inside.document.body.append(script)
      })
      const ready = load(url)
    }
  }
}
