# The status of a container is the run's, and it is started again before.
# status: 5
# prints: attempt

job "failed" {
  type = "batch"

  group "failed" {
    restart {
      attempts = 1
      delay    = "100ms"
      interval = "10m"
      mode     = "fail"
    }

    task "failed" {
      driver = "docker"

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "echo attempt; exit 5"]
        init    = true
      }
    }
  }
}
