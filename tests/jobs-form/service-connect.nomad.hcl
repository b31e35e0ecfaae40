job "service-connect" {
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
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
