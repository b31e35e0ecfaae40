# A container has the task's environment, and its templates as files.
# prints: stage=live color=blue

job "conf" {
  type = "batch"

  group "conf" {
    task "conf" {
      driver = "docker"

      env {
        STAGE = "live"
      }

      template {
        data        = "color=blue"
        destination = "local/color"
      }

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "echo stage=$STAGE $(cat /local/color)"]
      }
    }
  }
}
