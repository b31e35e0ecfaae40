job "web" {
  group "api" {
    network {
      port "http" {
        to = "http"
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
