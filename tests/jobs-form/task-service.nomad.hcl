job "task-service" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      service {
        name = "own"
        provider = "nomad"
        address_mode = "auto"
      }
      service {
        provider = "nomad"
      }
    }
  }
}
