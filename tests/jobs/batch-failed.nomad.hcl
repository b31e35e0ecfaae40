# The status of a task that failed is the run's.
# status: 3
# prints: disk is full

job "report" {
  type = "batch"

  group "report" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "report" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo disk is full >&2; exit 3"]
      }
    }
  }
}
