job "web" {
  group "api" {
    network {
      port "a" {
        static = 8080
      }
      port "b" {
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
