variable "image" {
  type = string
}

job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      user = var.image
    }
  }
}
