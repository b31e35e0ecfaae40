job "service-address" {
  group "g" {
    service {
      name = "s"
      provider = "nomad"
      address = "10.1.1.1"
      port = "8080"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
