job "web" {
  group "api" {
    network {
      port "http" {
        static = 70000
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
