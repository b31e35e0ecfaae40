job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/echo"
        args    = ["a" "b"]
      }
    }
  }
}
