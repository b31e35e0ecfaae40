variable "image" {
  default = "a"
}

job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      user = var.imgae
    }
  }
}
