job "service-check-expose" {
  group "g" {
    network {
      mode = "bridge"
    }
    service {
      name = "s"
      port = "9001"
      connect {
        sidecar_service {
        }
      }
      check {
        name = "c"
        type = "http"
        path = "/h"
        expose = true
        interval = "10s"
        timeout = "2s"
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
