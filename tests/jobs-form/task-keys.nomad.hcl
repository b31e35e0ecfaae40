job "task-keys" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      user = "nobody"
      kill_timeout = "20s"
      kill_signal = "SIGTERM"
      leader = true
      shutdown_delay = "2s"
      kind = ""
      meta {
        a = 1
      }
      env {
        A = "b"
        N = 5
        B = true
        F = 1.5
        R = "${NOMAD_ALLOC_DIR}-${attr.kernel.name}"
      }
    }
  }
}
