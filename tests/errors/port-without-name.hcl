job "web" {
  group "api" {
    network {
      port {
        static = 8080
      }
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
