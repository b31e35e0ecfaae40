job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      template {
        data        = "{{ enviroment \"PORT\" }}"
        destination = "local/x"
      }
    }
  }
}
