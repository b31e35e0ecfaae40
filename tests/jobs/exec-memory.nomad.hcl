# A task that uses more memory than it asked for is killed, and an event says why.
# status: 137
# prints: OOM Killed

job "hungry" {
  type = "batch"

  group "hungry" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "hungry" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done"]
      }

      resources {
        cpu    = 100
        memory = 20
      }
    }
  }
}
