job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      user = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" ; env { AAAAAAAAAA, AAAAAAAAAA, AAAAAAAAAA }
    }
  }
}
