# A container gets its signal, and below the engine's init its default action.
# meanwhile: grep -q ready $OUT
# status: 143

job "stopped" {
  group "stopped" {
    task "stopped" {
      driver       = "docker"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "echo ready; exec sleep 1000"]
        init    = true
      }
    }
  }
}
